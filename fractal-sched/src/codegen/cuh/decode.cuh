// Streaming weights past the caches' first level, and starting before the kernel ahead is done.
#pragma once

#include "fractal/memory.cuh"

namespace fractal {

// 16 bytes that are read once by the whole GPU. Volatile: loads are issued in the order of the text.
__device__ __forceinline__ uint4 load_streamed(const void* from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}
__device__ __forceinline__ int load_index(const int* from) {
    int v;
    asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(v) : "l"(from));
    return v;
}
// The bits of one 16-bit element that the kernel ahead may have written.
__device__ __forceinline__ unsigned load_half(const void* from) {
    unsigned short v;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(from) : "memory");
    return v;
}

// 128 bytes to the second-level cache.
__device__ __forceinline__ void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Programmatic dependent launch: the next kernel of the stream may start; this one waits for what the one ahead wrote.
// Both do nothing in an ordinary launch.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Some warps of a block: each number is a barrier of its own.
__device__ __forceinline__ void meet_at(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// 16 bytes through the first-level cache, asynchronously; copy_async<16> passes it by.
__device__ __forceinline__ void copy_cached(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

}  // namespace fractal
