// Copies from global to shared memory, asynchronous where the hardware and the alignment allow it.
#pragma once

#include "fractal/types.cuh"

namespace fractal {

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Copies BYTES (2, 4, 8 or 16) to shared memory, or zeros where `valid` is false; `from` is not read then.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
#if __CUDA_ARCH__ >= 800
    if constexpr (BYTES == 16) {
        int bytes = valid ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                     : "memory");
        return;
    } else if constexpr (BYTES >= 4) {
        int bytes = valid ? BYTES : 0;
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES),
                     "r"(bytes)
                     : "memory");
        return;
    }
#endif
    // A loop of 2-byte units: what is left is too narrow, or the GPU too old, for asynchronous copies.
#pragma unroll
    for (int i = 0; i < BYTES / 2; ++i) {
        ((unsigned short*)to)[i] = valid ? ((const unsigned short*)from)[i] : (unsigned short)0;
    }
}

// Closes the group of copies issued since the last one.
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most PENDING groups of this thread's copies are under way.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Programmatic dependent launch: the next kernel of the stream may start, up to its wait, once all blocks have come here;
// behind the wait, what earlier kernels wrote can be read. Without that launch attribute neither does anything.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Four neighbours of shared memory as f32, in one load.
__device__ __forceinline__ void load_four(float* to, const float* from) {
    const float4 four = *(const float4*)from;
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
template <typename T>
__device__ __forceinline__ void load_four(float* to, const T* from) {
    struct alignas(8) Four {
        T v[4];
    };
    const Four four = *(const Four*)from;
    for (int i = 0; i < 4; ++i) to[i] = to_float(four.v[i]);
}

// The place of element (row, column) of a tile in shared memory whose rows of COLUMNS elements of SIZE bytes are cut into
// chunks of 16 bytes. Chunks are exchanged within a row by the row's number, so that eight rows of one chunk column lie
// in different banks.
template <int COLUMNS, int SIZE>
__device__ __forceinline__ int swizzled(int row, int column) {
    constexpr int PER_CHUNK = 16 / SIZE;
    constexpr int CHUNKS = COLUMNS / PER_CHUNK;
    // Rows shorter than 128 bytes share a line of banks with their neighbours.
    constexpr int ROWS_PER_LINE = CHUNKS >= 8 ? 1 : 8 / CHUNKS;
    constexpr int MASK = CHUNKS >= 8 ? 7 : CHUNKS - 1;
    int chunk = (column / PER_CHUNK) ^ ((row / ROWS_PER_LINE) & MASK);
    return row * COLUMNS + chunk * PER_CHUNK + column % PER_CHUNK;
}

}  // namespace fractal
