// How values enter a kernel and leave it, the same for every kernel.
//
// All kernels are compiled with --fmad=false: a product and a sum round apart, as in NumPy, so
// that CPU and GPU agree to the bit wherever the order of operations is the same.

#pragma once

#include <cuda_fp16.h>

// Largest and smallest value of the integer types that results are stored as.
template <typename T> struct Integer { static constexpr bool value = false; };
template <> struct Integer<unsigned char> { static constexpr bool value = true; static constexpr int low = 0, high = 255; };
template <> struct Integer<unsigned short> { static constexpr bool value = true; static constexpr int low = 0, high = 65535; };
template <> struct Integer<short> { static constexpr bool value = true; static constexpr int low = -32768, high = 32767; };
template <> struct Integer<int> { static constexpr bool value = true; static constexpr int low = -2147483647 - 1, high = 2147483647; };
template <> struct Integer<long long> { static constexpr bool value = true; };

// An element as the type that the arithmetic is done in; never loses anything.
template <typename A, typename T> __device__ __forceinline__ A widen(T value) { return static_cast<A>(value); }
template <> __device__ __forceinline__ float widen<float, __half>(__half value) { return __half2float(value); }
template <> __device__ __forceinline__ double widen<double, __half>(__half value) { return __half2float(value); }

// A result as the type that it is stored as. Integers: round half to even, saturate, NaN is 0.
template <typename R> struct Convert {
    template <typename A> static __device__ __forceinline__ R from(A value) {
        if constexpr (!Integer<R>::value) {
            return static_cast<R>(value);
        } else if constexpr (Integer<A>::value) {
            return static_cast<R>(value < Integer<R>::low ? Integer<R>::low : value > Integer<R>::high ? Integer<R>::high : value);
        } else {
            // In double, which holds every int: the largest int is not a float.
            const double whole = rint(static_cast<double>(value));
            if (whole != whole) return 0;
            return static_cast<R>(whole < Integer<R>::low ? Integer<R>::low : whole > Integer<R>::high ? Integer<R>::high : whole);
        }
    }
};
template <> struct Convert<__half> {
    static __device__ __forceinline__ __half from(float value) { return __float2half_rn(value); }
    static __device__ __forceinline__ __half from(double value) { return __double2half(value); }
    template <typename A> static __device__ __forceinline__ __half from(A value) {
        return __double2half(static_cast<double>(value));
    }
};
template <typename R, typename A> __device__ __forceinline__ R convert(A value) { return Convert<R>::from(value); }
