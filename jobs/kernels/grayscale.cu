// Colour to luma: a weighted sum of red, green and blue.
//
// Limited by memory: three or four elements read and one written for five operations. The lanes
// of a warp read every third or fourth element; what one load leaves of its cache lines, the
// next two find in L1. Each thread takes PIXELS pixels, a block apart, to have enough reads
// under way.

#include "common.cuh"

constexpr int PIXELS = 4;

// Weights are multiples of 1/65536. Integers: in A, rounded half up. Floats: (r + g) + b in A.
template <typename T, typename A>
__global__ void grayscale(const T* __restrict__ input, T* __restrict__ output, long long pixels, int channels,
                          int red, int green, int blue) {
    const long long first = static_cast<long long>(blockIdx.x) * blockDim.x * PIXELS + threadIdx.x;
#pragma unroll
    for (int k = 0; k < PIXELS; ++k) {
        const long long i = first + k * static_cast<long long>(blockDim.x);
        if (i >= pixels) return;
        const T* pixel = input + i * channels;
        const A r = widen<A>(pixel[0]), g = widen<A>(pixel[1]), b = widen<A>(pixel[2]);
        if constexpr (Integer<T>::value) {
            output[i] = static_cast<T>((r * A(red) + g * A(green) + b * A(blue) + A(32768)) >> 16);
        } else {
            constexpr A unit = A(1) / A(65536);
            output[i] = convert<T>((r * (A(red) * unit) + g * (A(green) * unit)) + b * (A(blue) * unit));
        }
    }
}
