// Transpose through a tile of 32 x 32 elements in shared memory.
//
// Limited by memory, nearly: warps read and write 32 consecutive elements. What it lacks to a copy is that each
// access moves one element a thread, so that a thread has four small loads under way, and that a segment of 32
// elements is short. The tile's rows are 33 elements apart: the 32 elements of a column, which a warp reads,
// lie in 32 different banks; 32 apart they would lie in one, and be read one after the other.
//
// Grid: 1-D, a block for each tile, along the rows: ceil(rows / 32) * ceil(columns / 32). Block: 256 threads, as
// 8 rows of 32. Arguments: input, output, int64 rows, int64 columns.

constexpr int SIDE = 32, HEIGHT = 8;

// input: (rows, columns), output: (columns, rows), both C-contiguous.
template <typename T>
__global__ void transpose_tiled(const T* __restrict__ input, T* __restrict__ output, long long rows, long long columns) {
    __shared__ T tile[SIDE][SIDE + 1];
    const unsigned across = (columns + SIDE - 1) / SIDE;
    const long long left = static_cast<long long>(blockIdx.x % across) * SIDE;
    const long long top = static_cast<long long>(blockIdx.x / across) * SIDE;
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;

#pragma unroll
    for (int i = y; i < SIDE; i += HEIGHT) {
        if (top + i < rows && left + x < columns) tile[i][x] = input[(top + i) * columns + left + x];
    }
    __syncthreads();
#pragma unroll
    for (int i = y; i < SIDE; i += HEIGHT) {
        if (left + i < columns && top + x < rows) output[(left + i) * rows + top + x] = tile[x][i];
    }
}
