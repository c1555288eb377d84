// Hopper's own instructions: barriers in shared memory, bulk copies, register hand-over, wgmma descriptors.
// Formats: PTX ISA, "Asynchronous warpgroup level matrix instructions", "mbarrier", "cp.async.bulk".
#pragma once

#include "fractal/memory.cuh"

namespace fractal {

__device__ __forceinline__ void barrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void barrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and makes the barrier wait for this many bytes of bulk copies besides.
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Makes the barrier wait for this many bytes of bulk copies, without an arrival.
__device__ __forceinline__ void barrier_add_bytes(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Arrives when this thread's asynchronous copies so far are done.
__device__ __forceinline__ void barrier_arrive_after_copies(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n"
        "}" ::"r"(barrier),
        "r"(phase)
        : "memory");
}

// One contiguous piece of global memory, 16-byte aligned, by the copy engine; counts on the barrier.
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
        "r"(bytes), "r"(barrier)
        : "memory");
}
// The same to the same place of the first BLOCKS blocks of the cluster, and counting on each one's barrier.
template <int BLOCKS>
__device__ __forceinline__ void bulk_copy_to_all(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
            to),
        "l"(from), "r"(bytes), "r"(barrier), "h"((unsigned short)((1 << BLOCKS) - 1))
        : "memory");
}
// Arrives at the same barrier of another block of the cluster.
__device__ __forceinline__ void barrier_arrive_at(unsigned barrier, int block) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(barrier),
        "r"(block)
        : "memory");
}
// A matrix in global memory cut into boxes (the driver's CUtensorMap).
struct alignas(64) TensorMap {
    unsigned char opaque[128];
};
// A box of the map's matrix at (row, column) to shared memory, with zeros for what lies beyond the matrix's ends; counts on the
// barrier.
__device__ __forceinline__ void load_box(const TensorMap& map, int row, int column, unsigned to, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}
// A whole row of the map's matrix to shared memory, 128-byte aligned; counts on the barrier. For what threads read:
// compute-sanitizer takes a thread's read and a later `bulk_copy` for a race, whatever barriers lie between.
__device__ __forceinline__ void load_row(const TensorMap& map, int row, unsigned to, unsigned barrier) {
    load_box(map, row, 0, to, barrier);
}
// A box from shared memory to (row, column) of the map's matrix, if `there` is one; what lies beyond the matrix's ends is not
// written. Boxes are counted by `boxes_read`, those that are none, too.
__device__ __forceinline__ void store_box(const TensorMap& map, int row, int column, unsigned from, bool there) {
    if (there) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column),
                     "r"(row), "r"(from)
                     : "memory");
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all but PENDING of this thread's boxes have been read from shared memory.
template <int PENDING>
__device__ __forceinline__ void boxes_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
// Waits until this thread's boxes are in global memory.
__device__ __forceinline__ void boxes_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// The 128 threads of a warpgroup.
__device__ __forceinline__ void group_sync(int group) {
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}
// Two warpgroups in turn: what one does after `take_turn` follows what the other did before `pass_turn`.
__device__ __forceinline__ void take_turn(int group) { asm volatile("bar.sync %0, 256;" ::"r"(group + 3) : "memory"); }
__device__ __forceinline__ void pass_turn(int group) { asm volatile("bar.arrive %0, 256;" ::"r"(4 - group) : "memory"); }
// 16 bytes to a shared address.
__device__ __forceinline__ void copy_chunk(unsigned to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// 16 bytes to a shared address, or zeros.
__device__ __forceinline__ void copy_chunk(unsigned to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

template <int REGISTERS>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// What ordinary copies wrote to shared memory becomes visible to the tensor cores.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A matrix in shared memory with 128-byte swizzle: address, and bytes between its parts.
__device__ __forceinline__ unsigned long long descriptor(unsigned address, unsigned leading, unsigned stride) {
    return (unsigned long long)((address & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16 |
           (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}
// The same with 64-byte swizzle.
__device__ __forceinline__ unsigned long long descriptor64(unsigned address, unsigned leading, unsigned stride) {
    return (descriptor(address, leading, stride) & ~(3ull << 62)) | 2ull << 62;
}
// The descriptor `bytes` further on; the address is in its low half and does not overflow it.
__device__ __forceinline__ unsigned long long advance(unsigned long long descriptor, unsigned bytes) {
    return (descriptor & ~0xffffffffull) | (unsigned)((unsigned)descriptor + (bytes >> 4));
}

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The next kernel of the stream may start; and what the kernel before wrote is there. Both do nothing unless launched so.
__device__ __forceinline__ void dependents_may_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// All threads of the cluster's blocks that have not ended; those of a warp arrive together.
__device__ __forceinline__ void cluster_sync() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same place in the shared memory of another block of the cluster.
__device__ __forceinline__ unsigned shared_of_block(unsigned address, int block) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}
__device__ __forceinline__ void store_floats(unsigned there, const float* v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
}
__device__ __forceinline__ float4 load_floats(unsigned from) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(from) : "memory");
    return v;
}

// What is the same in all lanes of a warp, known to be so by the compiler: descriptors made of it stay in uniform registers.
__device__ __forceinline__ int uniform(int v) { return __shfl_sync(0xffffffffu, v, 0); }
// A constant of the weight's, fetched here and not where it is used.
__device__ __forceinline__ int load_now(const int* from) {
    int v;
    asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(v) : "l"(from));
    return v;
}
__device__ __forceinline__ float load_now(const float* from) {
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(from));
    return v;
}
// Four of them, 16-byte aligned.
__device__ __forceinline__ int4 load_four_now(const int* from) {
    int4 v;
    asm volatile("ld.global.nc.v4.s32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

// Four 8x8 matrices of 16-bit elements to shared memory; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(unsigned row, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}
__device__ __forceinline__ uint4 load_chunk(unsigned from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
}

}  // namespace fractal
