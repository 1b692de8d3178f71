// The 3 x 3 Laplacian: eight neighbours minus eight times the centre.
//
// Limited by memory: each element is read once and written once, and 12 operations on it cost
// nothing beside that (one byte elements excepted, where the four load and store instructions an
// element limit). So each thread walks down a strip of one column and keeps the sums of the last
// two rows in registers; the left and right neighbours come out of the L1 cache, where the
// same warp's centre loads put them. UNROLL rows are loaded before the first of them is used:
// the reads under way hide the latency. Rows of a padded block begin at any multiple of the
// itemsize, hence plain loads of one element, which a warp coalesces.
//
// Order of sums, for CPU and GPU alike: (left + centre) + right along a row, (top + middle) +
// bottom of these, minus 9 * centre.

#include "common.cuh"

constexpr int UNROLL = 4;

// input: (rows + 2, width + 2 * step), output: (rows, width); step: elements from a pixel to the
// next in its row, its number of channels. A grid of strips x columns blocks, in that C order;
// a strip is `strip` rows.
template <typename T, typename A, typename R>
__global__ void laplacian(const T* __restrict__ input, R* __restrict__ output, long long rows, long long width,
                          long long step, long long strip, long long columns) {
    const long long x = blockIdx.x % columns * blockDim.x + threadIdx.x;
    if (x >= width) return;
    const long long first = blockIdx.x / columns * strip;
    const long long last = first + strip < rows ? first + strip : rows;
    const long long pitch = width + 2 * step;

    const T* left = input + first * pitch + x;
    R* target = output + first * width + x;
    auto row = [&](const T* at, A& centre) {
        centre = widen<A>(at[step]);
        return (widen<A>(at[0]) + centre) + widen<A>(at[2 * step]);
    };
    A unused, middle_centre;
    A top = row(left, unused);
    A middle = row(left + pitch, middle_centre);
    left += 2 * pitch;

    long long y = first;
    for (; y + UNROLL <= last; y += UNROLL) {
        A sum[UNROLL], centre[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) sum[k] = row(left + k * pitch, centre[k]);
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) {
            __stcs(target + k * width, convert<R>(((top + middle) + sum[k]) - 9 * middle_centre));
            top = middle;
            middle = sum[k];
            middle_centre = centre[k];
        }
        left += UNROLL * pitch;
        target += UNROLL * width;
    }
    for (; y < last; ++y) {
        A centre;
        const A sum = row(left, centre);
        __stcs(target, convert<R>(((top + middle) + sum) - 9 * middle_centre));
        top = middle;
        middle = sum;
        middle_centre = centre;
        left += pitch;
        target += width;
    }
}
