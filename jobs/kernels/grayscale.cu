// Colour to luma: a weighted sum of red, green and blue.
//
// Limited by memory: three or four elements read and one written for five operations. The lanes
// of a warp read every third or fourth element; what one load leaves of its cache lines, the
// next two find in L1. Each thread takes PIXELS pixels, a block apart, to have enough reads
// under way.

#include "common.cuh"

constexpr int PIXELS = 4;

// Weights are multiples of 1/65536. Integers: in A, rounded half up; of 8 bytes by halves, whose products
// fit 64 bits. Floats: (r + g) + b in A.
template <typename T, typename A>
__global__ void grayscale(const T* __restrict__ input, typename Same<T>::type* __restrict__ output, long long pixels,
                          int channels, int red, int green, int blue) {
    typedef typename Same<T>::type R;
    const long long first = static_cast<long long>(blockIdx.x) * blockDim.x * PIXELS + threadIdx.x;
#pragma unroll
    for (int k = 0; k < PIXELS; ++k) {
        const long long i = first + k * static_cast<long long>(blockDim.x);
        if (i >= pixels) return;
        const T* pixel = input + i * channels;
        if constexpr (Integer<T>::value && sizeof(T) == 8) {
            const Wide r(pixel[0]), g(pixel[1]), b(pixel[2]);
            const Wide sum = red * r + green * g + blue * b;
            output[i] = static_cast<R>(sum.high) * 65536 + static_cast<R>((sum.low + 32768) >> 16);
        } else if constexpr (Integer<T>::value) {
            const A r = widen<A>(pixel[0]), g = widen<A>(pixel[1]), b = widen<A>(pixel[2]);
            output[i] = static_cast<R>((r * A(red) + g * A(green) + b * A(blue) + A(32768)) >> 16);
        } else {
            const A r = widen<A>(pixel[0]), g = widen<A>(pixel[1]), b = widen<A>(pixel[2]);
            constexpr A unit = A(1) / A(65536);
            output[i] = convert<R>((r * (A(red) * unit) + g * (A(green) * unit)) + b * (A(blue) * unit));
        }
    }
}
