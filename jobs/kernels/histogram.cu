// How many elements fall into each of equal bins.
//
// Limited by the atomic additions where many elements share a bin, by memory otherwise. Each
// block counts in shared memory, where the bins fit there, and adds its counts to the total once.
// Integer sums: the same on every run, in whatever order.

#include "common.cuh"

constexpr int SHARED = 8192;  // counters of a block: 32 KiB

// counts: bins + 2 counters, zero at first: the bins, elements below `low`, elements above `high`.
// Bin floor((x - low) * scale), `high` itself in the last. NaN and infinities are not counted.
template <typename T>
__global__ void histogram(const T* __restrict__ input, long long count, double low, double high, double scale,
                          int bins, unsigned* __restrict__ counts) {
    __shared__ unsigned shared[SHARED];
    const int counters = bins + 2;
    const bool fits = counters <= SHARED;
    if (fits) {
        for (int i = threadIdx.x; i < counters; i += blockDim.x) shared[i] = 0;
        __syncthreads();
    }
    unsigned* tally = fits ? shared : counts;

    const double infinity = 1.0 / 0.0;
    const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const double x = widen<double>(input[i]);
        if (!(fabs(x) < infinity)) continue;
        if (x < low) {
            atomicAdd(tally + bins, 1u);
        } else if (x > high) {
            atomicAdd(tally + bins + 1, 1u);
        } else {
            const double bin = floor((x - low) * scale);
            atomicAdd(tally + (bin < bins ? static_cast<int>(bin) : bins - 1), 1u);
        }
    }

    if (fits) {
        __syncthreads();
        for (int i = threadIdx.x; i < counters; i += blockDim.x) {
            if (shared[i]) atomicAdd(counts + i, shared[i]);
        }
    }
}
