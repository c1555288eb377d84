//! Few tokens: weights straight from global memory to the fragments of m16n8k16, read once at the rate of memory.
//!
//! The tables are those of `mma_sync`: a step's image is rows x 64 columns, a row's chunks of 8 columns exchanged by the
//! row's number. A block takes a *slab* of a tile's rows. Its warps stand in *teams* that each cover the slab, 16 or 32 rows a
//! warp. Teams take *rounds* of kept columns in turn: for each of a team's warps a *unit* of half a step (32 columns), whose
//! rows of X that warp gathers for the whole team. What the teams have summed is added in their order, so that two runs
//! agree to the bit.
//!
//! A lane loads whole chunks: lane `4 g + q` has chunk `q` of the unit's four, of rows `g` and `g + 8`. The instruction
//! expects columns `2 q`, `2 q + 1`, `2 q + 8`, `2 q + 9` there, but in which order columns are added is free as long as X
//! agrees. So *slots* are columns in the instructions' order: slot `8 j + 2 q + e` is column `8 q + 2 j + e`, of which
//! `j = 0, 1` make the first instruction and `j = 2, 3` the second. Kept rows of X are gathered in the order of the
//! slots, and one `ldmatrix` reads a unit's 32 of them for 8 tokens.

use super::{KernelConfig, emit, residue, store};
use fractal_dsl::{DType, Intrinsic};
use serde::{Deserialize, Serialize};

/// How a block of a decode kernel is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Decode {
    /// Rows of W a block, a part of a tile's: 16, 32 or 64.
    pub slab: usize,
    /// Warps a block, among which rows and columns are divided: 8 or 16.
    pub warps: usize,
}

/// Columns of a unit.
const UNIT: usize = 32;
/// 16-byte loads of weights that a lane has under way.
const LOADS: usize = 8;

impl Decode {
    /// Rows of a warp.
    fn warp_rows(self) -> usize {
        self.slab.min(32)
    }

    /// Units of weights in flight for each warp.
    fn depth(self) -> usize {
        8 * LOADS / self.warp_rows().max(16)
    }

    /// Blocks that a multiprocessor shall hold: what the registers allow, by their main uses.
    fn blocks(self, tokens: usize) -> usize {
        let (sums, weights, rest) = (self.warp_rows() * tokens / 32, 4 * LOADS, 32);
        // More would not leave room for addresses.
        let most = if tokens == 32 { 2 } else { 3 };
        (65_536 / (self.warps * 32) / (sums + weights + rest)).clamp(1, most)
    }

    /// Bytes of a warp's gathered rows of X, and later of its sums.
    fn warp_bytes(self, config: &KernelConfig) -> usize {
        let gathered = config.stages * UNIT * config.tokens * config.dtype.bytes();
        gathered.max(self.warp_rows() * config.tokens * 4)
    }

    /// Dynamic shared memory a block: the list of rows, and what each warp has.
    pub(super) fn shared_bytes(self, config: &KernelConfig) -> usize {
        self.slab * 4 + self.warps * self.warp_bytes(config)
    }

    /// What keeps a configuration from being a decode kernel.
    pub(super) fn check(self, config: &KernelConfig) -> Result<(), String> {
        let fits = config.intrinsic == Intrinsic::MmaSync
            && config.dtype != DType::F32
            && [16, 32, 64, 128].contains(&config.rows)
            && [16, 32, 64].contains(&self.slab)
            && config.rows.is_multiple_of(self.slab)
            && [8, 16].contains(&self.warps)
            && [8, 16, 32].contains(&config.tokens)
            && [1, 2, 4, 8].contains(&config.vector)
            && config.step == 2 * UNIT
            && [2, 4, 8].contains(&config.stages)
            && (config.stages * self.slab.div_ceil(32)).is_multiple_of(self.depth());
        if fits {
            return Ok(());
        }
        Err(format!(
            "decode: expected mma_sync on f16 or bf16, slabs of 16, 32 or 64 rows that divide the tile, 8 or 16 warps, \
             8, 16 or 32 tokens, steps of 64, vectors of at most 8, 2, 4 or 8 stages, found {config}"
        ))
    }
}

/// The kernel's pieces after the head.
pub(super) fn kernel(config: &KernelConfig, decode: Decode, name: &str) -> Vec<String> {
    vec![
        constants(config, decode),
        store::exact(config),
        emit::signature(config, name, "MIN_BLOCKS"),
        place().into(),
        gather(config),
        main_loop(config),
        store::finish(config),
        reduce().into(),
        "}\n".into(),
    ]
}

fn constants(config: &KernelConfig, decode: Decode) -> String {
    let KernelConfig { rows, tokens, step, stages, vector, .. } = config;
    let Decode { slab, warps } = decode;
    let (storage, depth, blocks) = (emit::storage(config), decode.depth(), decode.blocks(*tokens));
    let (warp_rows, warp_floats) = (decode.warp_rows(), decode.warp_bytes(config) / 4);
    format!(
        "using T = {storage};
constexpr int ROWS = {rows};            // rows of W a tile
constexpr int SLAB = {slab};            // of which a block takes
constexpr int WARP_ROWS = {warp_rows};       // of which a warp takes
constexpr int TOKENS = {tokens};          // tokens at most
constexpr int STEP = {step};            // kept columns a step
constexpr int STORED = {step};
constexpr int UNIT = {UNIT};            // kept columns at a time
constexpr int STAGES = {stages};           // rounds of X in flight
constexpr int DEPTH = {depth};            // units of W in flight
constexpr int VECTOR = {vector};           // elements of X a copy
constexpr int WARPS = {warps};
constexpr int THREADS = {threads};
constexpr int MIN_BLOCKS = {blocks};       // that a multiprocessor shall hold
constexpr int TEAM = SLAB / WARP_ROWS;  // warps of a team, and units of a round
constexpr int TEAMS = WARPS / TEAM;
constexpr int W_STAGE = ROWS * STORED;
constexpr int X_UNIT = UNIT * TOKENS;
constexpr int WARP_FLOATS = {warp_floats};   // of shared memory for each warp: rows of X, then sums
constexpr int GROUPS = TOKENS / 8;    // of tokens
",
        threads = config.threads(),
    )
}

fn place() -> &'static str {
    "    // parallel for tile, slab: one block each.
    const int tile = blockIdx.x / (ROWS / SLAB), top = blockIdx.x % (ROWS / SLAB) * SLAB;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, member = warp % TEAM, team = warp / TEAM;
    let_next_start();
    const int first = load_index(begin + tile), last = load_index(begin + tile + 1);
    extern __shared__ __align__(128) unsigned char shared[];
    int* const row_list = (int*)shared;
    float* const sums = (float*)(row_list + SLAB);
    T* const xs = (T*)(sums + team * TEAM * WARP_FLOATS);

    // Round t of this team has the units from (team + t * TEAMS) * TEAM on, of all in the tile.
    const int all = 2 * (last - first), rounds = ((all + TEAM - 1) / TEAM - team + TEAMS - 1) / TEAMS;
    auto unit_of = [&](int round, int number) { return (team + round * TEAMS) * TEAM + number; };
    const int g = lane / 4, q = lane % 4;
    const T* const lane_weights = values + (size_t)first * W_STAGE + (top + member * WARP_ROWS + g) * STORED + (q ^ g) * 8;
    // This lane looks up the column in slot `lane`.
    const int* const lane_columns = columns + (size_t)first * STEP + lane % 8 / 2 * 8 + lane / 8 * 2 + lane % 2;
    auto column = [&](int round) {
        const int unit = unit_of(round, member);
        return unit < all ? load_index(lane_columns + (size_t)unit * UNIT) : -1;
    };
    uint4 w[DEPTH][WARP_ROWS / 16][2];
    auto fetch = [&](uint4 (&to)[2], int i, int round, int number) {
        const int unit = unit_of(round, number);
        if (unit >= all) return;
        const T* const from =
            lane_weights + (size_t)(unit / 2) * W_STAGE + i * (16 * STORED) + ((q ^ g) & 4 ? -32 : 32) * (unit % 2);
        to[0] = load_streamed(from);
        to[1] = load_streamed(from + 8 * STORED);
    };
    // The warps of a team wait for each other.
    auto meet = [&]() {
        if (TEAM == 1) {
            __syncwarp();
        } else {
            meet_at(1 + team, TEAM * 32);
        }
    };
"
}

/// `gather(stage, k)`: starts the copies of this warp's unit of a round, `k` the row of X in this lane's slot. Tokens past m are
/// left as they are: a column of the product that is never stored. Slots without a row become zeros.
fn gather(config: &KernelConfig) -> String {
    let single = singles(config);
    let copies = match config.vector {
        // Through the first-level cache, which keeps some rows from one block to the next.
        8 => {
            "#pragma unroll
        for (int i = 0; i < GROUPS; ++i) {
            const int slot = i * (32 / GROUPS) + lane / GROUPS, token = lane % GROUPS * 8;
            const int row = GROUPS == 1 ? k : __shfl_sync(0xffffffffu, k, slot);
            if (token >= m) continue;
            T* const chunk = to + place(slot, token);
            if (row >= 0) {
                copy_cached(chunk, x + (size_t)row * m + token);
            } else {
                *(uint4*)chunk = make_uint4(0, 0, 0, 0);
            }
        }
"
        }
        1 => {
            "        const T* const from = x + (k < 0 ? 0 : (size_t)k * m);
        for (int token = 0; token < m; token += 8) {
            unsigned v[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                v[i] = FIRSTk >= 0 && token + i < m ? load_half(from + token + i) : 0;
            }
            *(uint4*)(to + place(lane, token)) =
                make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
        }
"
        }
        _ => {
            "        const T* const from = x + (k < 0 ? 0 : (size_t)k * m);
#pragma unroll 2
        for (int token = 0; token < m; token += VECTOR) {
            copy_async<VECTOR * sizeof(T)>(to + place(lane, token), from + token, k >= 0);
        }
"
        }
    };
    let copies = copies.replace("FIRST", if single { "token + i == 0 ? first_token : " } else { "" });
    let (peek, argument) = if single {
        ("    auto peek = [&](int k) { return k < 0 ? 0 : load_half(x + (size_t)k * m); };\n", ", unsigned first_token")
    } else {
        ("", "")
    };
    format!(
        "    auto place = [&](int slot, int token) {{ return swizzled<TOKENS, sizeof(T)>(slot, token); }};
    // condense: the kept columns of W are rows of X, each contiguous in tokens.
{peek}    auto gather = [&](int stage, int k{argument}) {{
        T* const to = xs + (stage * TEAM + member) * X_UNIT;
{copies}    }};
"
    )
}

/// Whether the elements of X come one at a time, through registers, and are mostly one token's: that token's are loaded while
/// other things are done.
fn singles(config: &KernelConfig) -> bool {
    config.vector == 1 && config.tokens == 8
}

fn main_loop(config: &KernelConfig) -> String {
    let residue = residue::decode(config);
    let (weights_to_cache, peek_all, peek, ahead, next) = if singles(config) {
        (
            "    if (m == 1) {
        // Memory would rest while columns and then elements of X are looked up: the next weights come as far as the cache. With
        // more tokens X comes by copies, which this would hold up.
        const int ahead = first + DEPTH * TEAMS / 2 + warp;
        for (int row = lane; ahead < last && row < SLAB; row += 32) prefetch(values + (size_t)ahead * W_STAGE + (top + row) * STORED);
    }
",
            "    unsigned ahead[STAGES];
#pragma unroll
    for (int s = 0; s < STAGES; ++s) ahead[s] = peek(kept[s]);
",
            "            const unsigned next = peek(kept[s]);\n",
            ", ahead[s]",
            ", next",
        )
    } else {
        ("", "", "", "", "")
    };
    format!(
        "    int kept[STAGES];
#pragma unroll
    for (int s = 0; s < STAGES; ++s) kept[s] = column(s);
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {{
#pragma unroll
        for (int i = 0; i < WARP_ROWS / 16; ++i) fetch(w[d][i], i, d / TEAM, d % TEAM);
    }}
    if (threadIdx.x < SLAB) copy_async<4>(row_list + threadIdx.x, rows + tile * ROWS + top + threadIdx.x, true);
{weights_to_cache}    // Only the weights were there before this kernel's turn.
    wait_for_previous();
{peek_all}#pragma unroll
    for (int s = 0; s < STAGES; ++s) {{
        if (s < rounds) gather(s, kept[s]{ahead});
        commit_copies();
        kept[s] = column(s + STAGES);
    }}
    float acc[WARP_ROWS / 16][GROUPS][4] = {{}};
    for (int base = 0; base < rounds; base += STAGES) {{
#pragma unroll
        for (int s = 0; s < STAGES; ++s) {{
            const int round = base + s;
            if (round >= rounds) break;
            wait_copies<STAGES - 1>();
            meet();
{peek}#pragma unroll
            for (int u = 0; u < TEAM; ++u) {{
                if (unit_of(round, u) >= all) break;
                uint4 (&a)[WARP_ROWS / 16][2] = w[(s * TEAM + u) % DEPTH];
#pragma unroll
                for (int j = 0; j < GROUPS; ++j) {{
                    unsigned b[4];
                    load_matrices_transposed(b, xs + (s * TEAM + u) * X_UNIT + place(lane, j * 8));
#pragma unroll
                    for (int i = 0; i < WARP_ROWS / 16; ++i) {{
                        const unsigned low[4] = {{a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y}};
                        const unsigned high[4] = {{a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w}};
                        mma(acc[i][j], low, b[0], b[1], T{{}});
                        mma(acc[i][j], high, b[2], b[3], T{{}});
                        // The registers' next weights start as soon as these are used.
                        if (j == GROUPS - 1) fetch(a[i], i, round + (u + DEPTH) / TEAM, (u + DEPTH) % TEAM);
                    }}
                }}
            }}
            meet();
            if (round + STAGES < rounds) gather(s, kept[s]{next});
            commit_copies();
            kept[s] = column(round + 2 * STAGES);
        }}
    }}
    wait_copies<0>();
    meet();

{residue}    // The sums of each warp, then their sum in the order of the teams.
#pragma unroll
    for (int i = 0; i < WARP_ROWS / 16; ++i) {{
#pragma unroll
        for (int j = 0; j < GROUPS; ++j) {{
            const float (&v)[4] = acc[i][j];
            *(float4*)(sums + warp * WARP_FLOATS + ((i * GROUPS + j) * 32 + lane) * 4) = make_float4(v[0], v[1], v[2], v[3]);
        }}
    }}
"
    )
}

fn reduce() -> &'static str {
    "    __syncthreads();
    // What one lane has of one fragment: two tokens of two rows.
    constexpr int OF_WARP = WARP_ROWS * TOKENS / 4;
    for (int c = threadIdx.x; c < TEAM * OF_WARP; c += THREADS) {
        const int row = c / 32 / GROUPS * 16 + c % 32 / 4, token = c / 32 % GROUPS * 8 + c % 4 * 2;
        if (token >= m) continue;
        const float* const of_team = sums + c / OF_WARP * WARP_FLOATS + c % OF_WARP * 4;
        float v[4] = {};
#pragma unroll
        for (int t = 0; t < TEAMS; ++t) {
            const float4 sum = *(const float4*)(of_team + t * (TEAM * WARP_FLOATS));
            v[0] += sum.x;
            v[1] += sum.y;
            v[2] += sum.z;
            v[3] += sum.w;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int n_row = row_list[row + h * 8];
            if (n_row < 0) continue;
            // One at a time: for both there are no registers.
#pragma unroll 1
            for (int e = 0; e < 2; ++e) finish(top + row + h * 8, n_row, token + e, e ? v[2 * h + 1] : v[2 * h]);
        }
    }
"
}
