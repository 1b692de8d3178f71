// How values enter a kernel and leave it, the same for every kernel.
//
// All kernels are compiled with --fmad=false: a product and a sum round apart, as in NumPy, so
// that CPU and GPU agree to the bit wherever the order of operations is the same.

#pragma once

#include <cuda_fp16.h>

// NumPy's bool: any byte but 0 is true, and counts as 1.
struct Bool {
    unsigned char byte;
    template <typename A> __device__ __forceinline__ explicit operator A() const { return static_cast<A>(byte != 0); }
};

// A sum of 64-bit integers, high * 2^32 + low: of their upper and of their lower halves, in whatever order.
// Exact as long as the weights of the sum are below 2^20 in total.
struct Wide {
    long long high, low;
    Wide() = default;
    __device__ __forceinline__ Wide(long long upper, long long lower) : high(upper), low(lower) {}
    __device__ __forceinline__ explicit Wide(long long value) : high(value >> 32), low(value & 0xffffffffLL) {}
    __device__ __forceinline__ explicit Wide(unsigned long long value)
        : high(static_cast<long long>(value >> 32)), low(static_cast<long long>(value & 0xffffffffULL)) {}
    // Both halves are doubles: rounded once.
    __device__ __forceinline__ explicit operator double() const {
        return static_cast<double>(high) * 4294967296.0 + static_cast<double>(low);
    }
};
__device__ __forceinline__ Wide operator+(Wide a, Wide b) { return {a.high + b.high, a.low + b.low}; }
__device__ __forceinline__ Wide operator-(Wide a, Wide b) { return {a.high - b.high, a.low - b.low}; }
__device__ __forceinline__ Wide operator*(long long a, Wide b) { return {a * b.high, a * b.low}; }

// The type of the weights in sums of type A.
template <typename A> struct Weight { typedef A type; };
template <> struct Weight<Wide> { typedef long long type; };

// The type that elements of a result of the same type as T are stored as: of bool those that hold counts.
template <typename T> struct Same { typedef T type; };
template <> struct Same<Bool> { typedef unsigned char type; };

// Largest and smallest value of the integer types that results are stored as.
template <typename T> struct Integer { static constexpr bool value = false; };
template <> struct Integer<unsigned char> { static constexpr bool value = true; static constexpr int low = 0, high = 255; };
template <> struct Integer<unsigned short> { static constexpr bool value = true; static constexpr int low = 0, high = 65535; };
template <> struct Integer<short> { static constexpr bool value = true; static constexpr int low = -32768, high = 32767; };
template <> struct Integer<signed char> { static constexpr bool value = true; static constexpr int low = -128, high = 127; };
template <> struct Integer<int> { static constexpr bool value = true; static constexpr int low = -2147483647 - 1, high = 2147483647; };
template <> struct Integer<unsigned> { static constexpr bool value = true; static constexpr long long low = 0, high = 4294967295LL; };
template <> struct Integer<long long> {
    static constexpr bool value = true;
    static constexpr long long low = -9223372036854775807LL - 1, high = 9223372036854775807LL;
};
template <> struct Integer<unsigned long long> {
    static constexpr bool value = true;
    static constexpr unsigned long long low = 0, high = 18446744073709551615ULL;
};
template <> struct Integer<Bool> { static constexpr bool value = true; };

// An element as the type that the arithmetic is done in; never loses anything.
template <typename A, typename T> __device__ __forceinline__ A widen(T value) { return static_cast<A>(value); }
template <> __device__ __forceinline__ float widen<float, __half>(__half value) { return __half2float(value); }
template <> __device__ __forceinline__ double widen<double, __half>(__half value) { return __half2float(value); }

// A result as the type that it is stored as. Integers: round half to even, saturate, NaN is 0.
template <typename R> struct Convert {
    template <typename A> static __device__ __forceinline__ R from(A value) {
        if constexpr (!Integer<R>::value) {
            return static_cast<R>(value);
        } else if constexpr (Integer<A>::value && sizeof(A) <= sizeof(R) && static_cast<R>(-1) < 0) {
            return static_cast<R>(value);
        } else if constexpr (Integer<A>::value) {
            static_assert(sizeof(R) < 8, "sums that become unsigned long long are of type Wide");
            return static_cast<R>(value < Integer<R>::low ? Integer<R>::low : value > Integer<R>::high ? Integer<R>::high : value);
        } else {
            // In double, which holds every int: the largest int is not a float.
            const double whole = rint(static_cast<double>(value));
            if (whole != whole) return 0;
            if constexpr (sizeof(R) == 8) {  // the largest is no double, one more is
                if (whole >= static_cast<double>(Integer<R>::high)) return Integer<R>::high;
                return whole <= static_cast<double>(Integer<R>::low) ? Integer<R>::low : static_cast<R>(whole);
            }
            return static_cast<R>(whole < Integer<R>::low ? Integer<R>::low : whole > Integer<R>::high ? Integer<R>::high : whole);
        }
    }
    static __device__ __forceinline__ R from(Wide value) {
        if constexpr (!Integer<R>::value) {
            return static_cast<R>(static_cast<double>(value));
        } else {
            const long long high = value.high + (value.low >> 32);
            const unsigned long long joined = static_cast<unsigned long long>(high) << 32 | (value.low & 0xffffffffLL);
            if constexpr (static_cast<R>(-1) > 0 && sizeof(R) == 8) {
                return high < 0 ? Integer<R>::low : high > 0xffffffffLL ? Integer<R>::high : joined;
            } else {
                typedef Integer<long long> Whole;
                return from(high < -0x80000000LL  ? Whole::low
                            : high > 0x7fffffffLL ? Whole::high
                                                  : static_cast<long long>(joined));
            }
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
