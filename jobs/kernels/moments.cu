// Count, extremes, mean and squared deviations of an array, one partial result a thread block.
//
// Limited by memory: a pass for the sums and a second, out of cache for the tiles that it is given,
// for the deviations from the block's mean (Chan, Golub and LeVeque, The American Statistician
// 37, 1983). No atomics: sums are trees of one shape, the same bits on every run.

#include "common.cuh"

constexpr int THREADS = 256;

struct Sums {
    double count, nan, infinite, low, high, sum;
};
struct Deviations {
    double squares, sum;
};

__device__ void add(Sums& a, const Sums& b) {
    a.count += b.count;
    a.nan += b.nan;
    a.infinite += b.infinite;
    a.low = fmin(a.low, b.low);
    a.high = fmax(a.high, b.high);
    a.sum += b.sum;
}
__device__ void add(Deviations& a, const Deviations& b) {
    a.squares += b.squares;
    a.sum += b.sum;
}

// The total over the block's threads, on every thread.
template <typename S> __device__ S total(const S& mine, S* shared) {
    shared[threadIdx.x] = mine;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) add(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    __syncthreads();
    return shared[0];
}

// partials: (blocks, 7) of count of finite elements, of NaN, of infinities; lowest, highest, mean of
// the finite ones, sum of their squared deviations from it. Without finite ones the last four mean nothing.
template <typename T>
__global__ void moments(const T* __restrict__ input, long long count, double* __restrict__ partials) {
    __shared__ Sums sums[THREADS];
    __shared__ Deviations deviations[THREADS];
    const long long first = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    const long long step = static_cast<long long>(gridDim.x) * THREADS;

    const double infinity = 1.0 / 0.0;
    Sums mine = {0, 0, 0, infinity, -infinity, 0};
    for (long long i = first; i < count; i += step) {
        const double x = widen<double>(input[i]);
        if (x != x) {
            mine.nan += 1;
        } else if (fabs(x) == infinity) {
            mine.infinite += 1;
        } else {
            add(mine, {1, 0, 0, x, x, x});
        }
    }
    const Sums all = total(mine, sums);

    // The second sum would be 0 but for rounding in the mean, and takes that error out.
    const double mean = all.sum / all.count;
    Deviations from_mean = {0, 0};
    for (long long i = first; i < count; i += step) {
        const double x = widen<double>(input[i]);
        if (fabs(x) < infinity) add(from_mean, {(x - mean) * (x - mean), x - mean});
    }
    const Deviations deviation = total(from_mean, deviations);

    if (threadIdx.x == 0) {
        double* partial = partials + 7 * blockIdx.x;
        partial[0] = all.count;
        partial[1] = all.nan;
        partial[2] = all.infinite;
        partial[3] = all.low;
        partial[4] = all.high;
        partial[5] = mean;
        partial[6] = deviation.squares - deviation.sum * deviation.sum / all.count;
    }
}
