// Transpose rows of a matrix straight into the memory of the ranks that own its columns.
//
// Limited by the link: a rank stores all but its own part into other GPUs' memory, and loads each element once
// from its own. A tile of 32 x 32 elements goes through shared memory, as in transpose_tiled.cu, so that warps
// store 32 consecutive elements: whole lines of 128 bytes for 4-byte elements. Consecutive blocks store to
// different ranks, beginning with the next one, so that all links are used at once. There are no flags: the
// caller has the ranks wait for each other before and after. Not measured on a GPU yet.
//
// Grid: 1-D, `peers` blocks for each tile of the widest part: peers * ceil(rows / 32) * ceil(widest / 32).
// Block: 256 threads, as 8 rows of 32.

constexpr int SIDE = 32, HEIGHT = 8;

// input: (rows, columns), C-contiguous: of a matrix, this rank's rows. Rank p has the matrix's columns cuts[p]
// to cuts[p + 1], as rows of `pitch` elements: targets[p] is the address, in them, of the first row's element
// that is the first of `input`'s column cuts[p]. rank: this one. widest: most columns of a rank.
template <typename T>
__global__ void transpose_peers(
    const T* __restrict__ input, const unsigned long long* __restrict__ targets,
    const long long* __restrict__ cuts, long long peers, long long rank, long long rows, long long columns,
    long long pitch, long long widest) {
    __shared__ T tile[SIDE][SIDE + 1];
    const long long peer = (blockIdx.x + rank + 1) % peers, number = blockIdx.x / peers;
    const long long across = (widest + SIDE - 1) / SIDE;
    const long long left = number % across * SIDE, top = number / across * SIDE;
    const long long first = cuts[peer], wide = cuts[peer + 1] - first;
    T* output = reinterpret_cast<T*>(targets[peer]);
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;

#pragma unroll
    for (int i = y; i < SIDE; i += HEIGHT) {
        if (top + i < rows && left + x < wide) tile[i][x] = input[(top + i) * columns + first + left + x];
    }
    __syncthreads();
#pragma unroll
    for (int i = y; i < SIDE; i += HEIGHT) {
        if (left + i < wide && top + x < rows) output[(left + i) * pitch + top + x] = tile[x][i];
    }
}
