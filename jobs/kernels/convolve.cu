// Convolution with any small kernel: one product and one sum a tap.
//
// Limited by memory for kernels of a few taps, by load instructions beyond (one cached load a
// tap and result). Each thread computes COLUMNS results, a block apart in their row, so that a
// tap's weight and place are read once for all of them.

#include "common.cuh"

constexpr int COLUMNS = 4;

// The result has units / columns rows of `width` elements, width counting the trailing axes too;
// `rows` of them are a plane. Of the padded input, `plane` and `pitch` are the elements from one
// plane and one row to the next, of the output target_plane and target_pitch; offsets[t] are those from a result's first neighbour to its neighbour
// under tap t. Products are summed in the taps' order; `divisor` divides the sum. A unit is a block's
// part of a row.
template <typename T, typename A, typename R>
__global__ void convolve(const T* __restrict__ input, R* __restrict__ output,
                         const typename Weight<A>::type* __restrict__ weights,
                         const long long* __restrict__ offsets, int taps, double divisor, long long rows,
                         long long width, long long plane, long long pitch, long long target_plane,
                         long long target_pitch, long long columns, long long units) {
    for (long long unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const long long row = unit / columns;
        const long long first = unit % columns * blockDim.x * COLUMNS + threadIdx.x;
        const T* from = input + row / rows * plane + row % rows * pitch;
        R* to = output + row / rows * target_plane + row % rows * target_pitch;

        // Past the row's end the last column is computed again and not stored.
        long long x[COLUMNS];
        A sum[COLUMNS];
#pragma unroll
        for (int k = 0; k < COLUMNS; ++k) {
            x[k] = first + k * static_cast<long long>(blockDim.x);
            x[k] = x[k] < width ? x[k] : width - 1;
            sum[k] = weights[0] * widen<A>(from[x[k] + offsets[0]]);
        }
        for (int tap = 1; tap < taps; ++tap) {
            const typename Weight<A>::type weight = weights[tap];
            const T* at = from + offsets[tap];
#pragma unroll
            for (int k = 0; k < COLUMNS; ++k) sum[k] = sum[k] + weight * widen<A>(at[x[k]]);
        }
#pragma unroll
        for (int k = 0; k < COLUMNS; ++k) {
            if (first + k * static_cast<long long>(blockDim.x) >= width) break;
            to[x[k]] = divisor == 1 ? convert<R>(sum[k]) : convert<R>(static_cast<double>(sum[k]) / divisor);
        }
    }
}
