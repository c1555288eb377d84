// Hopper's primitives on a CPU, as far as generated kernels use them: threads are threads, shared memory is an array, and
// what runs asynchronously on the GPU is put off as long as the kernel allows, so that a buffer or register that is
// used too early gives a wrong result. Barriers check their arrivals.
#pragma once
#include <barrier>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __noinline__
#define __restrict__
#define __grid_constant__

struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct int4 {
    int x, y, z, w;
};
struct float4 {
    float x, y, z, w;
};
struct Index {
    unsigned x;
};
thread_local Index threadIdx, blockIdx, gridDim;

inline float __uint_as_float(unsigned bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
inline unsigned __float_as_uint(float f) {
    unsigned bits;
    memcpy(&bits, &f, 4);
    return bits;
}
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float a, float b) { return a / b; }

namespace emulated {

constexpr unsigned SHARED = 232448;

[[noreturn]] inline void fault(const char* what) {
    fprintf(stderr, "block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
    _Exit(3);
}

struct Barrier {
    int count = 0, pending = 0, phase = 0;
    long bytes = 0;
};
struct Warp {
    std::barrier<> meet{32};
    unsigned value[32];
};
struct Block {
    std::vector<unsigned char> shared = std::vector<unsigned char>(SHARED, 0xee);
    std::vector<Barrier> barriers = std::vector<Barrier>(SHARED / 8);
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::unique_ptr<Warp>> warps;
    std::barrier<> all{384}, first{128}, second{128};
    // Threads that have let each of the two warpgroups begin.
    long passes[2] = {};
    Block() {
        for (int i = 0; i < 12; ++i) warps.emplace_back(new Warp);
    }
};
struct Cluster {
    std::vector<std::unique_ptr<Block>> blocks;
    std::barrier<> meet;
    explicit Cluster(int split) : meet(384 * split) {
        for (int i = 0; i < split; ++i) blocks.emplace_back(new Block);
    }
};
thread_local Cluster* cluster;
thread_local Block* block;

inline unsigned char* shared(unsigned address, unsigned bytes) {
    if (address + bytes > SHARED) fault("beyond shared memory");
    return block->shared.data() + address;
}
inline Warp& warp() { return *block->warps[threadIdx.x / 32]; }

// Groups of multiplications, and boxes on their way to global memory: oldest first.
using Work = std::function<void()>;
thread_local std::deque<std::vector<Work>> groups;
thread_local std::vector<Work> group;
thread_local std::deque<Work> boxes;

// The 16-byte chunks of rows of `span` bytes (64 or 128), exchanged by bits 7 and up of their addresses.
template <typename T>
float element(unsigned address, unsigned span) {
    const unsigned mask = span / 16 - 1;
    T v;
    memcpy(&v, shared(address ^ (((address >> 7) & mask) << 4), 2), 2);
    return to_float(v);
}

struct Matrix {
    unsigned start, leading, stride, span;
    explicit Matrix(unsigned long long d)
        : start((d & 0x3fff) << 4), leading((d >> 16 & 0x3fff) << 4), stride((d >> 32 & 0x3fff) << 4),
          span(d >> 62 == 1 ? 128 : 64) {}
};
// Rows of A: so many bytes each, eight to a stride.
template <typename T>
float of_a(const Matrix& a, int row, int k) {
    return element<T>(a.start + row / 8 * a.stride + row % 8 * a.span + k * 2, a.span);
}
// B: chunks of 64 columns, eight rows of k to a stride.
template <typename T>
float of_b(const Matrix& b, int k, int column) {
    return element<T>(b.start + column / 64 * b.leading + k / 8 * b.stride + k % 8 * 128 + column % 64 * 2, 128);
}

template <typename T, int N>
void multiply(float (&d)[N], unsigned long long a, unsigned long long b, int accumulate) {
    float* const out = d;
    group.push_back([=] {
        const Matrix w(a), x(b);
        for (int i = 0; i < N; ++i) {
            const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
            const int column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
            float sum = accumulate ? out[i] : 0.0f;
            for (int k = 0; k < 16; ++k) sum += of_a<T>(w, row, k) * of_b<T>(x, k, column);
            out[i] = sum;
        }
    });
}

template <typename T, int SELECTOR, int N>
void multiply_sparse(float (&d)[N], unsigned long long a, unsigned long long b, const unsigned& positions,
                     int accumulate) {
    float* const out = d;
    const unsigned* const later = &positions;
    group.push_back([=] {
        // The register is read now, not when the instruction was issued.
        Warp& lanes = warp();
        lanes.value[threadIdx.x % 32] = *later;
        lanes.meet.arrive_and_wait();
        const Matrix w(a), x(b);
        for (int i = 0; i < N; ++i) {
            const int within = threadIdx.x % 32 / 4 + i / 2 % 2 * 8, row = threadIdx.x / 32 % 4 * 16 + within;
            const int column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
            float sum = accumulate ? out[i] : 0.0f;
            for (int stored = 0; stored < 16; ++stored) {
                const int four = stored / 2;
                const unsigned word = lanes.value[within % 8 * 4 + SELECTOR * 2 + four / 4] >> within / 8 * 16;
                const int k = four * 4 + (word >> (four % 4 * 4 + stored % 2 * 2) & 3);
                sum += of_a<T>(w, row, stored) * of_b<T>(x, k, column);
            }
            out[i] = sum;
        }
        lanes.meet.arrive_and_wait();
    });
}

template <typename T>
unsigned pack(float high, float low) {
    return (unsigned)from_float<T>(high).bits << 16 | from_float<T>(low).bits;
}
inline unsigned word(unsigned address) {
    unsigned v;
    memcpy(&v, shared(address, 4), 4);
    return v;
}

}  // namespace emulated

template <typename T>
T __shfl_sync(unsigned, T v, int lane, int width = 32) {
    emulated::Warp& warp = emulated::warp();
    memcpy(&warp.value[threadIdx.x % 32], &v, 4);
    warp.meet.arrive_and_wait();
    T found;
    memcpy(&found, &warp.value[threadIdx.x % 32 / width * width + lane % width], 4);
    warp.meet.arrive_and_wait();
    return found;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T v, int apart) {
    return __shfl_sync(mask, v, threadIdx.x % 32 ^ apart);
}
inline unsigned __ballot_sync(unsigned, bool mine) {
    emulated::Warp& warp = emulated::warp();
    warp.value[threadIdx.x % 32] = mine;
    warp.meet.arrive_and_wait();
    unsigned all = 0;
    for (int i = 0; i < 32; ++i) all |= warp.value[i] << i;
    warp.meet.arrive_and_wait();
    return all;
}
inline bool __any_sync(unsigned mask, bool mine) { return __ballot_sync(mask, mine) != 0; }
inline bool __all_sync(unsigned mask, bool mine) { return __ballot_sync(mask, mine) == 0xffffffffu; }
inline void __syncwarp() { emulated::warp().meet.arrive_and_wait(); }
inline void __syncthreads() { emulated::block->all.arrive_and_wait(); }

namespace fractal {

using emulated::block;
using emulated::shared;

inline unsigned shared_address(const void* p) { return (unsigned)((const unsigned char*)p - block->shared.data()); }

inline void settle(emulated::Barrier& barrier) {
    if (barrier.pending < 0) emulated::fault("more arrivals than a barrier counts");
    if (barrier.pending == 0 && barrier.bytes == 0) {
        ++barrier.phase;
        barrier.pending = barrier.count;
        block->changed.notify_all();
    }
}
inline emulated::Barrier& barrier_at(unsigned address) {
    if (address % 8 || address >= emulated::SHARED) emulated::fault("a barrier out of place");
    return block->barriers[address / 8];
}
inline void barrier_init(unsigned address, unsigned arrivals) {
    barrier_at(address) = {(int)arrivals, (int)arrivals, 0, 0};
}
inline void barrier_init_done() {}
inline void barrier_expect(unsigned address, unsigned bytes) {
    std::lock_guard lock(block->mutex);
    emulated::Barrier& barrier = barrier_at(address);
    barrier.bytes += bytes;
    --barrier.pending;
    settle(barrier);
}
inline void barrier_add_bytes(unsigned address, unsigned bytes) {
    std::lock_guard lock(block->mutex);
    barrier_at(address).bytes += bytes;
}
inline void barrier_arrive(unsigned address) { barrier_expect(address, 0); }
inline void barrier_arrive_after_copies(unsigned address) { barrier_expect(address, 0); }
inline void barrier_wait(unsigned address, unsigned parity) {
    std::unique_lock lock(block->mutex);
    emulated::Barrier& barrier = barrier_at(address);
    block->changed.wait(lock, [&] { return (unsigned)(barrier.phase & 1) != parity; });
}
inline void bulk_copy(unsigned to, const void* from, unsigned bytes, unsigned address) {
    memcpy(shared(to, bytes), from, bytes);
    std::lock_guard lock(block->mutex);
    emulated::Barrier& barrier = barrier_at(address);
    barrier.bytes -= bytes;
    settle(barrier);
}

template <int BLOCKS>
inline void bulk_copy_to_all(unsigned to, const void* from, unsigned bytes, unsigned address) {
    emulated::Block* const own = block;
    for (int rank = 0; rank < BLOCKS; ++rank) {
        block = emulated::cluster->blocks[rank].get();
        bulk_copy(to, from, bytes, address);
    }
    block = own;
}
inline void barrier_arrive_at(unsigned address, int rank) {
    emulated::Block* const own = block;
    block = emulated::cluster->blocks[rank].get();
    barrier_arrive(address);
    block = own;
}

struct TensorMap {
    unsigned char* matrix;
    int rows, columns, box_rows, box;
};
inline void load_box(const TensorMap& map, int row, int column, unsigned to, unsigned address) {
    if (to % 1024 || map.box != 64) emulated::fault("a box of X out of place");
    for (int r = 0; r < map.box_rows; ++r) {
        for (int c = 0; c < map.box; ++c) {
            const unsigned at = to + r * 128 + c * 2;
            unsigned char* place = shared(at ^ (((at >> 7) & 7) << 4), 2);
            const bool there = row + r < map.rows && column + c < map.columns;
            there ? memcpy(place, map.matrix + ((size_t)(row + r) * map.columns + column + c) * 2, 2) : memset(place, 0, 2);
        }
    }
    std::lock_guard lock(block->mutex);
    emulated::Barrier& barrier = barrier_at(address);
    barrier.bytes -= map.box_rows * map.box * 2;
    settle(barrier);
}
inline void load_row(const TensorMap& map, int row, unsigned to, unsigned address) {
    if (to % 128 || map.box_rows != 1 || map.box != map.columns) emulated::fault("a row out of place");
    if (row < 0 || row >= map.rows) emulated::fault("a row beyond the matrix");
    memcpy(shared(to, map.columns * 4), map.matrix + (size_t)row * map.columns * 4, map.columns * 4);
    std::lock_guard lock(block->mutex);
    emulated::Barrier& barrier = barrier_at(address);
    barrier.bytes -= map.columns * 4;
    settle(barrier);
}
inline void store_box(const TensorMap& map, int row, int column, unsigned from, bool there) {
    emulated::boxes.push_back([=, owner = block] {
        if (!there) return;
        const unsigned span = map.box * 2, mask = span / 16 - 1;
        for (int r = 0; r < 64 && row + r < map.rows; ++r) {
            for (int c = 0; c < map.box && column + c < map.columns; ++c) {
                const unsigned at = from + r * span + c * 2;
                memcpy(map.matrix + ((size_t)(row + r) * map.columns + column + c) * 2,
                       owner->shared.data() + (at ^ (((at >> 7) & mask) << 4)), 2);
            }
        }
    });
}
template <int PENDING>
void boxes_read() {
    for (; emulated::boxes.size() > PENDING; emulated::boxes.pop_front()) emulated::boxes.front()();
}
inline void boxes_written() { boxes_read<0>(); }
inline void group_sync(int group) { (group == 0 ? block->first : block->second).arrive_and_wait(); }

inline thread_local long turns;
inline void take_turn(int group) {
    std::unique_lock lock(block->mutex);
    ++turns;
    block->changed.wait(lock, [&] { return block->passes[group] >= 128 * turns; });
}
inline int uniform(int v) { return __shfl_sync(0xffffffffu, v, 0); }
inline void pass_turn(int group) {
    std::lock_guard lock(block->mutex);
    ++block->passes[1 - group];
    block->changed.notify_all();
}

inline void copy_chunk(unsigned to, const void* from) { memcpy(shared(to, 16), from, 16); }
inline void copy_chunk(unsigned to, const void* from, bool valid) {
    valid ? copy_chunk(to, from) : (void)memset(shared(to, 16), 0, 16);
}
template <int REGISTERS>
void give_registers() {}
template <int REGISTERS>
void take_registers() {}
inline void fence_async() {}
inline unsigned long long descriptor(unsigned address, unsigned leading, unsigned stride) {
    return (unsigned long long)(address >> 4) | (unsigned long long)(leading >> 4) << 16 |
           (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}
inline unsigned long long descriptor64(unsigned address, unsigned leading, unsigned stride) {
    return (descriptor(address, leading, stride) & ~(3ull << 62)) | 2ull << 62;
}
inline unsigned long long advance(unsigned long long descriptor, unsigned bytes) { return descriptor + (bytes >> 4); }
// A warp's threads go on together.
inline void wgmma_begin() { __syncwarp(); }
inline void wgmma_commit() {
    emulated::groups.push_back(std::move(emulated::group));
    emulated::group.clear();
}
template <int PENDING>
void wgmma_wait() {
    for (; emulated::groups.size() > PENDING; emulated::groups.pop_front()) {
        for (const emulated::Work& work : emulated::groups.front()) work();
    }
    __syncwarp();
}
inline void dependents_may_start() {}
inline void dependency_wait() {}
inline void cluster_sync() { emulated::cluster->meet.arrive_and_wait(); }
inline unsigned shared_of_block(unsigned address, int block) { return address | (unsigned)block << 24; }
inline void store_floats(unsigned there, const float* v) {
    memcpy(emulated::cluster->blocks[there >> 24]->shared.data() + (there & 0xffffff), v, 16);
}
inline float4 load_floats(unsigned from) {
    float4 v;
    memcpy(&v, shared(from, 16), 16);
    return v;
}
template <typename T>
T load_now(const T* from) {
    return *from;
}
inline int4 load_four_now(const int* from) {
    if ((size_t)from % 16) emulated::fault("four columns from an address that is no multiple of 16");
    return {from[0], from[1], from[2], from[3]};
}
inline void store_matrices(unsigned row, unsigned a, unsigned b, unsigned c, unsigned d) {
    emulated::Warp& warp = emulated::warp();
    const int lane = threadIdx.x % 32;
    warp.value[lane] = row;
    warp.meet.arrive_and_wait();
    const unsigned v[4] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) memcpy(shared(warp.value[i * 8 + lane / 4] + lane % 4 * 4, 4), &v[i], 4);
    warp.meet.arrive_and_wait();
}
inline uint4 load_chunk(unsigned from) {
    uint4 v;
    memcpy(&v, shared(from, 16), 16);
    return v;
}

}  // namespace fractal
