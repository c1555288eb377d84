// Turns a row-major matrix, 32 x 32 elements a block.
using T = unsigned short;
constexpr int SIDE = 32;

extern "C" __global__ void __launch_bounds__(SIDE * 8)
transpose_16(const T* __restrict__ matrix, T* __restrict__ turned, int rows, int columns) {
    // One more column: the 32 elements of a column lie in different banks.
    __shared__ T square[SIDE][SIDE + 1];
    const int x = blockIdx.x * SIDE, y = blockIdx.y * SIDE;
    for (int r = threadIdx.y; r < SIDE; r += 8) {
        if (y + r < rows && x + threadIdx.x < columns) {
            square[r][threadIdx.x] = matrix[(size_t)(y + r) * columns + x + threadIdx.x];
        }
    }
    __syncthreads();
    for (int r = threadIdx.y; r < SIDE; r += 8) {
        if (x + r < columns && y + threadIdx.x < rows) {
            turned[(size_t)(x + r) * rows + y + threadIdx.x] = square[threadIdx.x][r];
        }
    }
}
