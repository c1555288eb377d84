//! The kernel that turns token-major activations into feature-major ones.

use super::emit::CudaSource;
use fractal_dsl::DType;

/// Side of the square that a block of `TRANSPOSE_SIDE` x 8 threads turns.
pub const TRANSPOSE_SIDE: usize = 32;

/// `turned[column, row] = matrix[row, column]` of a matrix of `rows` x `columns`.
pub fn emit_transpose(dtype: DType) -> CudaSource {
    let storage = if dtype == DType::F32 { "float" } else { "unsigned short" };
    let name = format!("transpose_{}", dtype.bytes() * 8);
    let text = format!(
        "// Turns a row-major matrix, 32 x 32 elements a block.
using T = {storage};
constexpr int SIDE = {TRANSPOSE_SIDE};

extern \"C\" __global__ void __launch_bounds__(SIDE * 8)
{name}(const T* __restrict__ matrix, T* __restrict__ turned, int rows, int columns) {{
    // One more column: the 32 elements of a column lie in different banks.
    __shared__ T square[SIDE][SIDE + 1];
    const int x = blockIdx.x * SIDE, y = blockIdx.y * SIDE;
    for (int r = threadIdx.y; r < SIDE; r += 8) {{
        if (y + r < rows && x + threadIdx.x < columns) {{
            square[r][threadIdx.x] = matrix[(size_t)(y + r) * columns + x + threadIdx.x];
        }}
    }}
    __syncthreads();
    for (int r = threadIdx.y; r < SIDE; r += 8) {{
        if (x + r < columns && y + threadIdx.x < rows) {{
            turned[(size_t)(x + r) * rows + y + threadIdx.x] = square[threadIdx.x][r];
        }}
    }}
}}
"
    );
    CudaSource { name, text }
}
