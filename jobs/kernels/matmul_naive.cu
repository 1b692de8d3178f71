// Matrix product, one element of the result a thread.
//
// Limited by the caches: for each multiplication and addition, a thread loads two elements. Of a warp the one is
// the same for all, and the other 32 consecutive ones, so that most loads are served by the L1; but its rate of
// loads, not that of arithmetic, is what a thread waits for.
//
// Grid: 1-D, a block for each tile of 8 rows x 32 columns of the result, along the rows: ceil(m / 8) * ceil(n / 32).
// Block: 256 threads. Arguments: a, b, c, int64 m, int64 n, int64 k. Meant for --fmad=true.

#include "bfloat16.cuh"

constexpr int WIDTH = 32, HEIGHT = 8;

// a: (m, k), b: (k, n), c: (m, n), all C-contiguous. A: what products are summed in, in the order of k.
template <typename T, typename A>
__global__ void matmul_naive(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, long long m, long long n,
                             long long k) {
    const long long across = (n + WIDTH - 1) / WIDTH;
    const long long column = blockIdx.x % across * WIDTH + threadIdx.x % WIDTH;
    const long long row = blockIdx.x / across * HEIGHT + threadIdx.x / WIDTH;
    if (row >= m || column >= n) return;
    a += row * k;
    b += column;
    A sum = 0;
    for (long long i = 0; i < k; ++i) sum += widen<A>(a[i]) * widen<A>(b[i * n]);
    c[row * n + column] = convert<T>(sum);
}
