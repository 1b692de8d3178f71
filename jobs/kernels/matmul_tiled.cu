// Matrix product by tiles of 32 x 32 in shared memory.
//
// Limited by shared memory: an element of the inputs is read from global memory once for 32 rows or columns of
// the result, but for each multiplication and addition a thread still loads two elements from shared memory,
// which serves 32 a clock where the arithmetic could take 256. (Of the two one is the same for a warp, the other
// 32 consecutive ones: there are no bank conflicts.)
//
// Grid: 1-D, a block for each tile of the result, along the rows: ceil(m / 32) * ceil(n / 32). Block: 1024
// threads. Arguments: a, b, c, int64 m, int64 n, int64 k. Meant for --fmad=true.

#include "bfloat16.cuh"

constexpr int SIDE = 32;

// a: (m, k), b: (k, n), c: (m, n), all C-contiguous. A: what products are summed in, in the order of k.
template <typename T, typename A>
__global__ void __launch_bounds__(SIDE* SIDE)
    matmul_tiled(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, long long m, long long n, long long k) {
    __shared__ A left[SIDE][SIDE], right[SIDE][SIDE];
    const long long across = (n + SIDE - 1) / SIDE;
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    const long long column = blockIdx.x % across * SIDE + x, row = blockIdx.x / across * SIDE + y;

    A sum = 0;
    for (long long begin = 0; begin < k; begin += SIDE) {
        // Zeros beyond the edges add nothing.
        left[y][x] = row < m && begin + x < k ? widen<A>(a[row * k + begin + x]) : A(0);
        right[y][x] = column < n && begin + y < k ? widen<A>(b[(begin + y) * n + column]) : A(0);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < SIDE; ++i) sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = convert<T>(sum);
}
