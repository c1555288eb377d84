// Tensor-core fragments: mma.sync and mma.sp of sm_80 and later. Layouts: PTX ISA, "Warp-level matrix instructions".
#pragma once

#include "fractal/memory.cuh"
#include "fractal/types.cuh"

namespace fractal {

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Volatile, although they touch no memory: a multiplication that only some lanes' results need would else be moved behind
// the branch that tells, and all lanes of a warp must take part.
#define FRACTAL_MMA(TYPE, NAME)                                                                                      \
    /* d[16 x 8] += a[16 x 16] b[16 x 8] */                                                                          \
    __device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, TYPE) {     \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME                                          \
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                          \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                \
    }                                                                                                                \
    /* d[16 x 8] += a[16 x 32, 2 of 4 kept] b[32 x 8]; lanes 0 and 1 (SELECTOR 0) or 2 and 3 (1) of each four */     \
    /* hold the positions of what is kept. */                                                                        \
    template <int SELECTOR>                                                                                          \
    __device__ __forceinline__ void mma_sparse(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[4],        \
                                               unsigned positions, TYPE) {                                           \
        asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32." NAME "." NAME                     \
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"      \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),       \
                       "r"(positions), "n"(SELECTOR));                                                               \
    }

FRACTAL_MMA(f16, "f16")
FRACTAL_MMA(bf16, "bf16")
#undef FRACTAL_MMA

}  // namespace fractal
