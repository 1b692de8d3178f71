// Transpose, one element a thread.
//
// Limited by sectors of 32 bytes that are written in parts: a warp reads 32 elements of a row from consecutive
// addresses, but writes them to 32 rows of the result. The eight rows of a block fill one sector of each only
// where elements have 4 bytes, and eight store instructions do what one could.
//
// Grid: 1-D, a block for each tile of 8 rows x 32 columns of the input, along the rows: ceil(rows / 8) *
// ceil(columns / 32). Block: 256 threads. Arguments: input, output, int64 rows, int64 columns.

constexpr int WIDTH = 32, HEIGHT = 8;

// input: (rows, columns), output: (columns, rows), both C-contiguous.
template <typename T>
__global__ void transpose_naive(const T* __restrict__ input, T* __restrict__ output, long long rows, long long columns) {
    const unsigned across = (columns + WIDTH - 1) / WIDTH;
    const long long column = static_cast<long long>(blockIdx.x % across) * WIDTH + threadIdx.x % WIDTH;
    const long long row = static_cast<long long>(blockIdx.x / across) * HEIGHT + threadIdx.x / WIDTH;
    if (row < rows && column < columns) output[column * rows + row] = input[row * columns + column];
}
