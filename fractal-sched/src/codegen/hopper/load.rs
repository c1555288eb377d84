//! The warpgroup that copies: lists of kept columns -> stages of X and W in shared memory.

use super::KernelConfig;
use fractal_dsl::Intrinsic;

/// How the copy engine brings a step's weights.
struct Weights {
    /// The copy of the weights, whole or this block's part for all of the cluster.
    copy: String,
    /// That of their positions, a line of its own.
    positions: String,
    /// The bytes of both.
    bytes: &'static str,
}

/// The weights of the step whose number among all is `step`, to `ws` of `stage`.
fn weights(config: &KernelConfig, step: &str, stage: &str) -> Weights {
    let copy = if config.share > 1 {
        format!(
            "bulk_copy_to_all<SHARE>(ws + member * (W_STAGE * 2 / SHARE), values + (size_t)({step}) * W_STAGE + member * (W_STAGE / SHARE), W_STAGE * 2 / SHARE, full + 8 * {stage});"
        )
    } else {
        format!("bulk_copy(ws, values + (size_t)({step}) * W_STAGE, W_STAGE * 2, full + 8 * {stage});")
    };
    if config.intrinsic == Intrinsic::WgmmaSp {
        let positions = format!("load_row(p_map, {step}, ws + W_STAGE * 2, full + 8 * {stage});\n");
        Weights { copy, positions, bytes: "W_STAGE * 2 + P_STAGE * 4" }
    } else {
        Weights { copy, positions: String::new(), bytes: "W_STAGE * 2" }
    }
}

/// Copies of the weights of a block's first steps, before its turn. `mine`: whether this thread copies step `s`; `expect`: what
/// announces the bytes; `indent` is the code's.
fn early_weights(config: &KernelConfig, mine: &str, expect: &str, indent: &str) -> String {
    if !config.has_early_weights() {
        return String::new();
    }
    let Weights { copy, positions, bytes } = weights(config, "range.first + s", "s");
    let positions = indented(&positions, "        ");
    let code = format!(
        "// Weights were there before this kernel's turn. With one tile of tokens each block has weights of its own: all stages
// are filled. Else two: more would be in the way of what the last blocks of the kernel ahead still copy.
int early = token_tiles == 1 ? STAGES : 2;
if (early > range.last - range.first) early = range.last - range.first;
for (int s = 0; s < early; ++s) {{
    const unsigned ws = base + s * STAGE_BYTES + X_STAGE * 2;
    if ({mine}) {{
        {copy}
{positions}        {expect}(full + 8 * s, {bytes});
    }}
}}
"
    );
    indented(&code, indent)
}

/// The place of a stage, and the weights of its step: the four copying warps bring them in turn.
pub(super) fn weights_beside_rows(config: &KernelConfig, step: &str) -> String {
    let Weights { copy, positions, bytes } = weights(config, step, "stage");
    let positions = indented(&positions, "    ");
    let early = if config.has_early_weights() { "if (early > 0) --early;\nelse " } else { "" };
    format!(
        "const unsigned xs = base + stage * STAGE_BYTES, ws = xs + X_STAGE * 2;
{early}if (lane == 0 && warp == (stage & 3)) {{
    {copy}
{positions}    barrier_expect(full + 8 * stage, {bytes});
}}
__syncwarp();
"
    )
}

/// The producer's part in the cluster's last meeting.
pub(super) fn joined(config: &KernelConfig) -> &'static str {
    if config.split * config.share > 1 { "        cluster_sync();\n" } else { "" }
}

/// The boxes of one step: `column`, the tokens `m0`, the place `xs` and the stage are known.
pub(super) const LOAD_BOXES: &str = "#pragma unroll
                    for (int c = 0; c < TOKENS / 64; ++c) {
                        if (lane < GROUPS) load_box(x_map, column, m0 + c * 64, xs + c * (STEP * 128) + lane * (RUN * 128), full + 8 * stage);
                    }
";

pub(super) fn box_producer(config: &KernelConfig) -> String {
    // One group alone is the same to all lanes, and known to be: then its boxes are issued without a loop over lanes. Steps with
    // 2 of 4 kept are too short for that loop; dense ones, twice as long, were 2 % slower without it.
    let alone = config.column_run == config.step && config.intrinsic == Intrinsic::WgmmaSp;
    let group = if alone { "" } else { " + lane % 8" };
    let (Weights { copy, positions, bytes }, joined) =
        (weights(config, "range.first + ahead + u", "stage"), joined(config));
    let positions = indented(&positions, "                        ");
    let early = early_weights(config, "lane == 0", "barrier_add_bytes", "            ");
    let [unless_early, expected] = if early.is_empty() {
        [String::new(), format!("X_STAGE * 2 + {bytes}")]
    } else {
        ["if (early <= 0) ".into(), format!("early > 0 ? X_STAGE * 2 : X_STAGE * 2 + {bytes}")]
    };
    let counted = if early.is_empty() { "" } else { "                        early -= early > 0;\n" };
    format!(
        "    if (group == 2) {{
        give_registers<72>();
        if (warp == 0) {{
            // The first columns of the groups of four steps are fetched while the four before are copied: of a step, eight lanes.
            auto fetch = [&](Range range, int step) {{
                const int mine = range.first + step + lane / 8, group = lane % 8;
                return mine < range.last && group < GROUPS ? load_now(columns + (size_t)mine * STEP + group * RUN) : -1;
            }};
            int stage = 0, turn = 0;
            unsigned phase = 0;
            Item item = fetch_item(0), coming = fetch_item(1);
            Range range = part(item);
            int far = fetch(range, 0);
{early}            // X is what the kernel before may have written.
            dependency_wait();
            for (; item.tile >= 0; ++turn) {{
                const Range next = part(coming);
                const int m0 = item.m0;
                item = coming;
                coming = fetch_item(turn + 2);
                const int steps = range.last - range.first;
                for (int ahead = 0; ahead == 0 || ahead < steps; ahead += 4) {{
                    // Used before more is fetched: to wait for the one would be to wait for the other.
                    const int near = far < 0 ? NOWHERE : far;
                    far = ahead + 4 < steps ? fetch(range, ahead + 4) : fetch(next, 0);
#pragma unroll
                    for (int u = 0; u < 4; ++u) {{
                        if (ahead + u >= steps) break;
                        const int column = __shfl_sync(0xffffffffu, near, u * 8{group});
                        barrier_wait(empty + 8 * stage, phase ^ 1);
                        const unsigned xs = base + stage * STAGE_BYTES, ws = xs + X_STAGE * 2;
                        if (lane == 0) {{
                            {unless_early}{copy}
{positions}                            barrier_expect(full + 8 * stage, {expected});
                        }}
{counted}                        __syncwarp();
{LOAD_BOXES}                        if (++stage == STAGES) {{
                            stage = 0;
                            phase ^= 1;
                        }}
                    }}
                }}
                range = next;
            }}
        }}
{joined}        return;
    }}

"
    )
}

/// Where a lane of the copying warps copies to, and which rows take the plain loop; for rows that come one by one.
pub(super) const PLACE: &str =
    "        // A warp copies a quarter of a stage's rows of X. Its lanes cover so many tokens of so many rows at once.
        constexpr int QUARTER = X_STEP / 4;
        constexpr int LANES = TOKENS / 8 < 32 ? TOKENS / 8 : 32, AT_ONCE = 32 / LANES, COUNT = QUARTER / AT_ONCE;
        constexpr int PARTS = (TOKENS + 255) / 256;
        const int sub = lane / LANES;
        // Chunk of 64 tokens, then rows of 128 bytes, pieces of 16 exchanged by the row's number.
        const unsigned chunk = lane % LANES / 8 * (X_STEP * 128) + warp * (QUARTER * 128) + sub * 128, within = lane % 8;
        // Rows of X up to `most` begin at an offset of 32 bits.
        const unsigned row_bytes = (unsigned)m * 2, most = 0xffffffffu / row_bytes;
        // Of a register's two steps, how many have all columns there, up to the first that has not.
        auto whole_steps = [&](int column) {
            const unsigned there = __ballot_sync(0xffffffffu, (unsigned)column <= most);
            return there == 0xffffffffu ? 2 : (there & 0xffff) == 0xffff ? 1 : 0;
        };
";

/// A loop that copies the rows of stages one after another.
pub(super) struct StepLoop<'a> {
    /// Whether all rows and tokens are there and offsets have 32 bits: known beforehand, the loop is kept free of what others need.
    /// The copying warps bound kernels that gather: with that in the same loop and offsets of 64 bits they take 8 % more time.
    pub plain: bool,
    /// `for (…) {`, with its pragma and what ends an unrolled one.
    pub head: &'a str,
    /// Code for `column`: stage `u`'s columns in QUARTER lanes from `u * QUARTER % 32` on.
    pub column: &'a str,
    /// Code for `xs`, the place of the stage's X; and the copy of its weights.
    pub stage: &'a str,
    /// Whether lanes exchange offsets before they wait for the stage.
    pub offsets_first: bool,
    pub indent: &'a str,
}

impl StepLoop<'_> {
    /// `source`, `token` and the first stage are known.
    pub fn code(&self) -> String {
        let (element, held, copy) = if self.plain {
            (
                "unsigned",
                "(unsigned)column * row_bytes",
                "        copy_chunk(to + p * (4 * X_STEP * 128) + i * AT_ONCE * 128 + ((within ^ ((i * AT_ONCE + sub) & 7)) << 4),
                   source + offsets[i] + p * 512);
",
            )
        } else {
            (
                "int",
                "column",
                "        const bool kept = token + p * 256 < m && offsets[i] >= 0;
        copy_chunk(to + p * (4 * X_STEP * 128) + i * AT_ONCE * 128 + ((within ^ ((i * AT_ONCE + sub) & 7)) << 4),
                   source + (kept ? (size_t)offsets[i] * row_bytes + p * 512 : 0), kept);
",
            )
        };
        let offsets = format!(
            "// A lane's rows come to the first lanes of its LANES; from there, to all of them.
const {element} own = __shfl_sync(0xffffffffu, {held}, u * QUARTER % 32 + lane % LANES * AT_ONCE + sub);
{element} offsets[COUNT];
#pragma unroll
for (int i = 0; i < COUNT; ++i) offsets[i] = __shfl_sync(0xffffffffu, own, i, LANES);
"
        );
        let stage = format!("barrier_wait(empty + 8 * stage, phase ^ 1);\n{}", self.stage);
        let (before, after) = if self.offsets_first { (offsets, stage) } else { (stage, offsets) };
        let body = format!(
            "{}{before}{after}const unsigned to = xs + chunk;
#pragma unroll
for (int i = 0; i < COUNT; ++i) {{
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {{
{copy}    }}
}}
barrier_arrive_after_copies(full + 8 * stage);
if (++stage == STAGES) {{
    stage = 0;
    phase ^= 1;
}}
",
            self.column
        );
        let inner = format!("{}    ", self.indent);
        format!("{}{}{}}}\n", indented(self.head, self.indent), indented(&body, &inner), self.indent)
    }
}

/// The lines, but no directives, that much further to the right.
pub(super) fn indented(code: &str, indent: &str) -> String {
    code.lines()
        .map(|line| if line.starts_with('#') { format!("{line}\n") } else { format!("{indent}{line}\n") })
        .collect()
}

/// Rows of X come one by one; columns go from lane to lane.
pub(super) fn producer(config: &KernelConfig) -> String {
    let (weights, joined) = (weights_beside_rows(config, "range.first + ahead + u"), joined(config));
    let early = early_weights(config, "lane == 0 && warp == (s & 3)", "barrier_expect", "        ");
    let [unrolled, rolled] = [
        "#pragma unroll\nfor (int u = 0; u < 4; ++u) {\n    if (u >= plain) break;\n",
        "#pragma unroll 1\nfor (int u = plain; u < count; ++u) {\n",
    ];
    let rows = |plain| {
        StepLoop {
            plain,
            head: if plain { unrolled } else { rolled },
            column: "const int column = u < 2 ? near : far;\n",
            stage: &weights,
            offsets_first: plain,
            indent: "                ",
        }
        .code()
    };
    let (plain, others) = (rows(true), rows(false));
    format!(
        "    if (group == 2) {{
        give_registers<72>();
{PLACE}        // The columns of four steps are fetched while the four before are copied: two steps a register, 16 lanes each, this
        // warp's rows. What is no step counts as there.
        auto fetch = [&](Range range, int step) {{
            const int mine = range.first + step + lane / 16;
            return mine < range.last ? load_now(columns + (size_t)mine * STEP + warp * 16 + lane % 16) : 0;
        }};
        int stage = 0, turn = 0;
        unsigned phase = 0;
        Item item = fetch_item(0), coming = fetch_item(1);
        Range range = part(item);
        int near = fetch(range, 0), far = fetch(range, 2);
{early}        // X is what the kernel before may have written.
        dependency_wait();
        for (; item.tile >= 0; ++turn) {{
            const Range next = part(coming);
            const int m0 = item.m0;
            item = coming;
            coming = fetch_item(turn + 2);
            const int token = m0 + lane % LANES * 8;
            const char* const source = (const char*)(x + (token < m ? token : 0));
            const int steps = range.last - range.first;
            for (int ahead = 0; ahead == 0 || ahead < steps; ahead += 4) {{
                const bool more = ahead + 4 < steps;
                // A step that lacks a column is as a rule its tile's last: those before it need not look.
                const int near_whole = whole_steps(near), far_whole = whole_steps(far);
                const int near_ahead = more ? fetch(range, ahead + 4) : fetch(next, 0);
                const int far_ahead = more ? fetch(range, ahead + 6) : fetch(next, 2);
                const int count = steps - ahead < 4 ? steps - ahead : 4;
                const int whole = near_whole < 2 ? near_whole : 2 + far_whole;
                const int plain = m0 + TOKENS > m ? 0 : whole < count ? whole : count;
{plain}{others}                near = near_ahead;
                far = far_ahead;
            }}
            range = next;
        }}
        // No copy may be under way when the block ends.
        asm volatile(\"cp.async.wait_all;\" ::: \"memory\");
{joined}        return;
    }}

"
    )
}
