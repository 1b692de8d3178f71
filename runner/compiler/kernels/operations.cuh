// NumPy's operations on single values, for CUDA (NVRTC) and for a C++17 compiler on the host.
//
// Each rounds as NumPy's loop for that dtype: no contraction (--fmad=false, -ffp-contract=off), integers wrap,
// division of integers by zero is 0, NaN passes through minimum and maximum. Half is computed in float and
// rounded after each operation, as NumPy does. Functions such as exp and pow are those of elementary.hpp if it
// comes before, as it does on the host, and else the platform's own.
#pragma once

#ifdef __CUDACC_RTC__
#include <cuda_fp16.h>
#define INLINE __device__ __forceinline__
typedef __half Half;
#else
#include <cmath>
#include <cstring>
#define INLINE static inline __attribute__((always_inline, unused))
enum class Half : unsigned short {};  // its bits
#endif

typedef signed char int8;
typedef unsigned char uint8;
typedef short int16;
typedef unsigned short uint16;
typedef int int32;
typedef unsigned int uint32;
typedef long long int64;
typedef unsigned long long uint64;

#ifndef __CUDACC_RTC__
// GCC 12 drops the rounding of (double)(float)x in some vectorised loops, unless a factor that it does not
// know stands between the two conversions.
float meshrun_one = 1.0f;
#endif

namespace numpy {

template <typename T> struct Traits { static constexpr bool real = false, half = false; typedef T Compute; };
template <> struct Traits<float> { static constexpr bool real = true, half = false; typedef float Compute; };
template <> struct Traits<double> { static constexpr bool real = true, half = false; typedef double Compute; };
template <> struct Traits<Half> { static constexpr bool real = true, half = true; typedef float Compute; };
template <typename T> struct Same { typedef T type; };
template <typename T> struct Unsigned { typedef unsigned long long type; };
template <> struct Unsigned<int8> { typedef uint32 type; };
template <> struct Unsigned<uint8> { typedef uint32 type; };
template <> struct Unsigned<int16> { typedef uint32 type; };
template <> struct Unsigned<uint16> { typedef uint32 type; };
template <> struct Unsigned<int32> { typedef uint32 type; };
template <> struct Unsigned<uint32> { typedef uint32 type; };
template <typename A, typename B> struct IsSame { static constexpr bool value = false; };
template <typename A> struct IsSame<A, A> { static constexpr bool value = true; };
template <typename T> constexpr bool is_bool = IsSame<T, bool>::value;
template <typename T> constexpr bool is_signed = T(-1) < T(0);
template <> constexpr bool is_signed<Half> = true;

template <typename T, typename B> INLINE T bits(B pattern) {
    T value;
#ifdef __CUDACC_RTC__
    static_assert(sizeof(T) == sizeof(B), "");
    value = *reinterpret_cast<const T*>(&pattern);
#else
    std::memcpy(&value, &pattern, sizeof(T));
#endif
    return value;
}

#ifndef __CUDACC_RTC__
// Conversions of 16-bit floats, in operations on all bits that loops vectorise: GCC 12 does no conversion of
// _Float16 in a vector. The product with 2^112 is exact, also of numbers below the normal range.
INLINE float from_half(Half x) {
    const uint32 pattern = uint32(x), magnitude = (pattern & 0x7fffu) << 13, sign = (pattern & 0x8000u) << 16;
    const uint32 special = -uint32(magnitude >= 0x7c00u << 13) & 0x7f800000u;  // infinite or NaN
    return bits<float>(bits<uint32>(bits<float>(magnitude) * 0x1p112f) | special | sign);
}
// Rounded to even; what is above the range becomes infinite. The sum with 0.5 rounds numbers below the normal
// range; the others are rounded by adding half of the last place that stays.
INLINE Half to_half(float x) {
    const uint32 pattern = bits<uint32>(x), magnitude = pattern & 0x7fffffffu;
    const uint32 tiny = bits<uint32>(bits<float>(magnitude) + 0.5f) - 0x3f000000u;
    const uint32 usual = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    const uint32 is_tiny = -uint32(magnitude < 113u << 23), is_large = -uint32(magnitude >= 143u << 23);
    const uint32 large = 0x7c00u | (-uint32(magnitude > 0x7f800000u) & 0x200u);
    const uint32 found = (tiny & is_tiny) | (large & is_large) | (usual & ~is_tiny & ~is_large);
    return Half(found | (pattern >> 16 & 0x8000u));
}
// Rounded once: the bits that a float drops leave a mark in its last bit.
INLINE Half to_half(double x) {
    const uint64 pattern = bits<uint64>(x), dropped = (1ull << 29) - 1;
    const uint64 mark = static_cast<uint64>((pattern & dropped) != 0) << 29;
    return to_half(static_cast<float>(bits<double>((pattern & ~dropped) | mark)));
}
#endif

// The value as the type that is computed in, and back, rounded.
template <typename T> INLINE typename Traits<T>::Compute widen(T x) {
    if constexpr (!Traits<T>::half) return x;
#ifdef __CUDACC_RTC__
    else return __half2float(x);
#else
    else return from_half(x);
#endif
}
template <typename T> INLINE T narrow(typename Traits<T>::Compute x) {
    if constexpr (!Traits<T>::half) return static_cast<T>(x);
#ifdef __CUDACC_RTC__
    else return __float2half_rn(x);
#else
    else return to_half(x);
#endif
}

template <typename T> INLINE T where(bool condition, T a, T b);
template <typename T> INLINE T copysign(T a, T b);
template <typename R, typename T> INLINE R cast(T x) {
    if constexpr (IsSame<R, T>::value) return x;
#ifndef __CUDACC_RTC__
    else if constexpr (is_bool<T> && Traits<R>::real) return where(x, narrow<R>(1), narrow<R>(0));
#endif
    else if constexpr (is_bool<R>) {
        if constexpr (Traits<T>::half) return widen(x) != 0; else return x != 0;
    } else if constexpr (Traits<R>::half) {
#ifdef __CUDACC_RTC__
        if constexpr (IsSame<T, double>::value) return __double2half(x); else return __float2half_rn(static_cast<float>(x));
#else
        if constexpr (IsSame<T, double>::value) return to_half(x); else return to_half(static_cast<float>(widen(x)));
#endif
    } else if constexpr (Traits<T>::real && !Traits<R>::real) {
        // What is out of range wraps as it does in NumPy on x86: through a wider signed integer.
        if constexpr (sizeof(R) < 4) return static_cast<R>(static_cast<int32>(widen(x)));
        else if constexpr (IsSame<R, uint32>::value) return static_cast<R>(static_cast<int64>(widen(x)));
        else if constexpr (IsSame<R, uint64>::value) {
            const double v = widen(x), half = 9223372036854775808.0;
            return v >= half ? static_cast<R>(static_cast<int64>(v - half)) ^ (1ull << 63) : static_cast<R>(static_cast<int64>(v));
        } else return static_cast<R>(widen(x));
#ifndef __CUDACC_RTC__
    } else if constexpr (IsSame<R, float>::value && IsSame<T, double>::value) {
        return static_cast<float>(x) * meshrun_one;
#endif
    } else return static_cast<R>(widen(x));
}

template <typename T> INLINE bool truth(T x) { return cast<bool>(x); }
template <typename T> INLINE bool isnan(T x) {
    if constexpr (Traits<T>::real) { const auto v = widen(x); return v != v; } else return false;
}

// Whether a position is one of LOW, LOW + STEP, ..., below HIGH.
template <int64 LOW, int64 HIGH, int64 STEP, typename P> INLINE bool inside(P place) {
    typedef typename Unsigned<P>::type U;
    const U from = U(place) - U(LOW);
    if constexpr (STEP == 1) return from < U(HIGH - LOW);
    else return (from < U(HIGH - LOW)) & (from % U(STEP) == 0);
}

// The number that all cells share in one of the slots of a step.
template <typename T> INLINE T slot(const uint64* slot) {
#ifdef __CUDACC_RTC__
    return *reinterpret_cast<const T*>(slot);
#else
    T value;
    std::memcpy(&value, slot, sizeof(T));
    return value;
#endif
}

// Arithmetic. Integers of less than 32 bits are computed in 32 and wrap when they are narrowed.
#define ARITHMETIC(NAME, SIGN, BOOL)                                                                   \
    template <typename T> INLINE T NAME(T a, T b) {                                                    \
        if constexpr (is_bool<T>) return a BOOL b;                                                     \
        else if constexpr (Traits<T>::real) return narrow<T>(widen(a) SIGN widen(b));                  \
        else return static_cast<T>(static_cast<typename Unsigned<T>::type>(a)                          \
                                       SIGN static_cast<typename Unsigned<T>::type>(b));               \
    }
ARITHMETIC(add, +, |)
ARITHMETIC(subtract, -, ^)
ARITHMETIC(multiply, *, &)
#undef ARITHMETIC

template <typename T> INLINE T divide(T a, T b) { return narrow<T>(widen(a) / widen(b)); }

// a * b + c, rounded once.
template <typename T> INLINE T fused(T a, T b, T c) {
    if constexpr (sizeof(T) == 8) return ::fma(a, b, c); else return ::fmaf(a, b, c);
}

template <typename T> INLINE T fmod(T a, T b) {
    if constexpr (Traits<T>::real) {
        if constexpr (sizeof(T) == 8) return ::fmod(a, b); else return narrow<T>(::fmodf(widen(a), widen(b)));
    } else {
        if (b == 0) return 0;
        if constexpr (is_signed<T>) { if (b == T(-1)) return 0; }
        return static_cast<T>(a % b);
    }
}

// As npy_divmod (numpy/core/src/npymath): the quotient's floor and a remainder with the sign of b.
template <typename T> INLINE T divmod(T a, T b, T& remainder) {
    T mod = sizeof(T) == 8 ? T(::fmod(double(a), double(b))) : T(::fmodf(float(a), float(b)));
    if (b == 0) { remainder = mod; return a / b; }
    T quotient = (a - mod) / b;
    if (mod != 0) {
        if ((b < 0) != (mod < 0)) { mod += b; quotient -= T(1); }
    } else mod = sizeof(T) == 8 ? T(::copysign(0.0, double(b))) : T(::copysignf(0.0f, float(b)));
    T whole;
    if (quotient != 0) {
        whole = sizeof(T) == 8 ? T(::floor(double(quotient))) : T(::floorf(float(quotient)));
        if (quotient - whole > T(0.5)) whole += T(1);
    } else whole = sizeof(T) == 8 ? T(::copysign(0.0, double(a / b))) : T(::copysignf(0.0f, float(a / b)));
    remainder = mod;
    return whole;
}
template <typename T> INLINE T floor_divide(T a, T b) {
    if constexpr (Traits<T>::real) {
        typename Traits<T>::Compute rest, x = widen(a), y = widen(b);
        return y == 0 ? narrow<T>(x / y) : narrow<T>(divmod(x, y, rest));
    } else {
        if (b == 0) return 0;
        if constexpr (is_signed<T>) {
            if (b == T(-1)) return static_cast<T>(typename Unsigned<T>::type(0) - static_cast<typename Unsigned<T>::type>(a));
            const T quotient = static_cast<T>(a / b);
            return static_cast<T>(a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient);
        } else return static_cast<T>(a / b);
    }
}
template <typename T> INLINE T remainder(T a, T b) {
    if constexpr (Traits<T>::real) {
        typename Traits<T>::Compute rest;
        divmod(widen(a), widen(b), rest);
        return narrow<T>(rest);
    } else {
        if (b == 0) return 0;
        if constexpr (is_signed<T>) {
            if (b == T(-1)) return 0;
            const T rest = static_cast<T>(a % b);
            return static_cast<T>(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
        } else return static_cast<T>(a % b);
    }
}

template <typename T> INLINE T negative(T x) {
    if constexpr (Traits<T>::real) return narrow<T>(-widen(x));
    else return static_cast<T>(typename Unsigned<T>::type(0) - static_cast<typename Unsigned<T>::type>(x));
}
template <typename T> INLINE T positive(T x) { return x; }
template <typename T> INLINE T absolute(T x) {
    if constexpr (Traits<T>::real) {
        if constexpr (sizeof(T) == 8) return ::fabs(x); else return narrow<T>(::fabsf(widen(x)));
    } else if constexpr (is_bool<T>) return x;
    else if constexpr (is_signed<T>) return x < 0 ? negative(x) : x;
    else return x;
}
template <typename T> INLINE T fabs(T x) { return absolute(x); }
template <typename T> INLINE T square(T x) { return multiply(x, x); }
template <typename T> INLINE T reciprocal(T x) { return narrow<T>(typename Traits<T>::Compute(1) / widen(x)); }
template <typename T> INLINE T sign(T x) {
    if constexpr (Traits<T>::real) {
        const auto v = widen(x);
        return v > 0 ? narrow<T>(1) : v < 0 ? narrow<T>(-1) : v == 0 ? narrow<T>(0) : x;
    } else if constexpr (is_signed<T>) return static_cast<T>((x > 0) - (x < 0));
    else return static_cast<T>(x > 0);
}

// Functions of floats; floor and its kind leave integers as they are.
#define PLATFORM(NAME, C)                                                                              \
    template <typename T> INLINE T NAME(T x) {                                                         \
        if constexpr (!Traits<T>::real) return x;                                                      \
        else if constexpr (sizeof(T) == 8) return ::C(x);                                              \
        else return narrow<T>(::C##f(widen(x)));                                                       \
    }
PLATFORM(rint, rint)
#ifndef ELEMENTARY
PLATFORM(floor, floor) PLATFORM(ceil, ceil) PLATFORM(trunc, trunc)
#define FUNCTION(NAME, C) PLATFORM(NAME, C)
PLATFORM(sin, sin) PLATFORM(cos, cos) PLATFORM(tan, tan)
#else
// By rint, which GCC vectorises; the sign stays, also that of a zero.
template <typename T> INLINE T floor(T x) {
    if constexpr (!Traits<T>::real) return x;
    else {
        const auto nearest = rint(widen(x));
        return copysign(narrow<T>(where(nearest > widen(x), nearest - 1, nearest)), x);
    }
}
template <typename T> INLINE T ceil(T x) {
    if constexpr (!Traits<T>::real) return x; else return negative(floor(negative(x)));
}
template <typename T> INLINE T trunc(T x) {
    if constexpr (!Traits<T>::real) return x; else return copysign(floor(absolute(x)), x);
}
#define FUNCTION(NAME, C)                                                                              \
    template <typename T> INLINE T NAME(T x) {                                                         \
        return narrow<T>(cast<typename Traits<T>::Compute>(elementary::NAME<typename Traits<T>::Compute>(widen(x)))); \
    }
// near_sin and its kind are sin of all numbers that are not far. A loop computes these, and is vectorised.
FUNCTION(near_sin, ) FUNCTION(near_cos, ) FUNCTION(near_tan, )
template <typename T> INLINE bool far(T x) { return elementary::far(widen(x)); }
#define PERIODIC(NAME)                                                                                 \
    template <typename T> INLINE T NAME(T x) {                                                         \
        return far(x) ? narrow<T>(cast<typename Traits<T>::Compute>(::NAME(double(widen(x))))) : near_##NAME(x); \
    }
PERIODIC(sin) PERIODIC(cos) PERIODIC(tan)
#undef PERIODIC
#endif
FUNCTION(exp, exp) FUNCTION(exp2, exp2) FUNCTION(expm1, expm1) FUNCTION(log, log) FUNCTION(log2, log2)
FUNCTION(log10, log10) FUNCTION(log1p, log1p) FUNCTION(cbrt, cbrt) FUNCTION(arcsin, asin) FUNCTION(arccos, acos)
FUNCTION(arctan, atan) FUNCTION(sinh, sinh) FUNCTION(cosh, cosh) FUNCTION(tanh, tanh) FUNCTION(arcsinh, asinh)
FUNCTION(arccosh, acosh) FUNCTION(arctanh, atanh)
#undef FUNCTION
#undef PLATFORM
// The square root, correctly rounded. Of floats on a GPU: the compiler's own sequence branches for each one.
template <typename T> INLINE T sqrt(T x) {
    if constexpr (!Traits<T>::real) return x;
    else if constexpr (sizeof(T) == 8) return ::sqrt(x);
    else {
#ifdef __CUDACC_RTC__
        const float value = widen(x);
        const bool tiny = value < 0x1p-100f;  // then e below could be too small for a float
        const float scaled = tiny ? value * 0x1p100f : value;
        float inverse;
        asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(scaled));
        const float root = __fmul_rn(scaled, inverse), e = __fmaf_rn(-root, root, scaled);
        const float exact = __fmaf_rn(e, 0.5f * inverse, root);
        const bool itself = value == 0 || value == __int_as_float(0x7f800000);
        return narrow<T>(itself ? value : tiny ? exact * 0x1p-50f : exact);
#else
        return narrow<T>(::sqrtf(widen(x)));
#endif
    }
}
#define PLATFORM2(NAME, C)                                                                             \
    template <typename T> INLINE T NAME(T a, T b) {                                                    \
        if constexpr (sizeof(T) == 8) return ::C(a, b);                                                \
        else return narrow<T>(::C##f(widen(a), widen(b)));                                             \
    }
PLATFORM2(copysign, copysign)
#ifdef __CUDACC_RTC__
PLATFORM2(hypot, hypot)
#endif
#ifndef ELEMENTARY
PLATFORM2(arctan2, atan2) PLATFORM2(real_power, pow)
#else
#define FUNCTION2(NAME, C)                                                                             \
    template <typename T> INLINE T NAME(T a, T b) {                                                    \
        typedef typename Traits<T>::Compute Compute;                                                   \
        return narrow<T>(cast<Compute>(elementary::C<Compute>(widen(a), widen(b))));                   \
    }
FUNCTION2(arctan2, arctan2) FUNCTION2(real_power, power)
#undef FUNCTION2
#endif
#undef PLATFORM2
template <typename T> INLINE T power(T a, T b) {
    if constexpr (Traits<T>::real) return real_power(a, b);
    else {
        typename Unsigned<T>::type base = a, result = 1;
        for (auto left = b; left > 0; left >>= 1, base *= base)
            if (left & 1) result *= base;
        return static_cast<T>(result);
    }
}
// The power of a float whose exponent is a small whole number.
template <int EXPONENT, typename T> INLINE T whole_power(T x) {
#ifdef ELEMENTARY
    typedef typename Traits<T>::Compute Compute;
    return narrow<T>(cast<Compute>(elementary::whole_power<Compute, EXPONENT>(widen(x))));
#else
    return power(x, narrow<T>(EXPONENT));
#endif
}
template <typename T> INLINE T float_power(T a, T b) { return power(a, b); }
template <typename T> INLINE T deg2rad(T x) { return narrow<T>(widen(x) * typename Traits<T>::Compute(3.141592653589793238462643383279502884 / 180.0)); }
template <typename T> INLINE T rad2deg(T x) { return narrow<T>(widen(x) * (typename Traits<T>::Compute(180) / typename Traits<T>::Compute(3.141592653589793238462643383279502884))); }
template <typename T> INLINE T radians(T x) { return deg2rad(x); }
template <typename T> INLINE T degrees(T x) { return rad2deg(x); }

// Comparisons; of signed with unsigned 64-bit integers by value.
template <typename A, typename B> constexpr bool mixed = !IsSame<A, B>::value;
template <typename A, typename B> INLINE bool less(A a, B b) {
    if constexpr (mixed<A, B> && is_signed<A>) return a < 0 || static_cast<B>(a) < b;
    else if constexpr (mixed<A, B>) return b >= 0 && a < static_cast<A>(b);
    else return widen(a) < widen(b);
}
template <typename A, typename B> INLINE bool equal(A a, B b) {
    if constexpr (mixed<A, B> && is_signed<A>) return a >= 0 && static_cast<B>(a) == b;
    else if constexpr (mixed<A, B>) return b >= 0 && a == static_cast<A>(b);
    else return widen(a) == widen(b);
}
template <typename A, typename B> INLINE bool less_equal(A a, B b) {
    if constexpr (mixed<A, B>) return less(a, b) || equal(a, b); else return widen(a) <= widen(b);
}
template <typename A, typename B> INLINE bool greater(A a, B b) { return less(b, a); }
template <typename A, typename B> INLINE bool greater_equal(A a, B b) { return less_equal(b, a); }
template <typename A, typename B> INLINE bool not_equal(A a, B b) { return !equal(a, b); }

// On the host, floats are chosen by their bits: GCC vectorises no loop in which `?:` computes a float in a branch.
template <typename T> INLINE T where(bool condition, T a, T b) {
#ifndef __CUDACC_RTC__
    if constexpr (Traits<T>::half) {
        const uint16 mask = -static_cast<uint16>(condition);
        return Half((uint16(a) & mask) | (uint16(b) & ~mask));
    } else if constexpr (Traits<T>::real && sizeof(T) == 4) {
        const uint32 mask = -static_cast<uint32>(condition);
        return bits<T>((bits<uint32>(a) & mask) | (bits<uint32>(b) & ~mask));
    } else if constexpr (Traits<T>::real && sizeof(T) == 8) {
        const uint64 mask = -static_cast<uint64>(condition);
        return bits<T>((bits<uint64>(a) & mask) | (bits<uint64>(b) & ~mask));
    } else if constexpr (is_bool<T>) return (condition & a) | (!condition & b);
#endif
    return condition ? a : b;
}
#ifndef __CUDACC_RTC__
// The hypotenuse, of floats in double, where no square overflows: loops of it are vectorised.
template <typename T> INLINE T hypot(T a, T b) {
    if constexpr (sizeof(T) == 8) {
#ifdef ELEMENTARY
        return elementary::hypot(a, b);
#else
        return ::hypot(a, b);
#endif
    } else {
        const float x = ::fabsf(widen(a)), y = ::fabsf(widen(b));
        const float root = static_cast<float>(::sqrt(double(x) * x + double(y) * y));
        return narrow<T>(where((x == HUGE_VALF) | (y == HUGE_VALF), HUGE_VALF, root));
    }
}
#endif
template <typename T> INLINE T maximum(T a, T b) { return where(isnan(a) | greater_equal(a, b), a, b); }
template <typename T> INLINE T minimum(T a, T b) { return where(isnan(a) | less_equal(a, b), a, b); }
template <typename T> INLINE T fmax(T a, T b) { return where(isnan(b) | greater_equal(a, b), a, b); }
template <typename T> INLINE T fmin(T a, T b) { return where(isnan(b) | less_equal(a, b), a, b); }

template <typename T> INLINE bool isinf(T x) {
    if constexpr (Traits<T>::real) { const auto v = widen(absolute(x)); return !isnan(x) && isnan(v - v); } else return false;
}
template <typename T> INLINE bool isfinite(T x) { return !isnan(x) && !isinf(x); }
template <typename T> INLINE bool signbit(T x) {
    if constexpr (Traits<T>::half) return bits<uint16>(x) >> 15;
    else if constexpr (sizeof(T) == 8) return bits<uint64>(x) >> 63;
    else return bits<uint32>(x) >> 31;
}

template <typename T> INLINE bool logical_not(T x) { return !truth(x); }
template <typename T> INLINE bool logical_and(T a, T b) { return truth(a) & truth(b); }
template <typename T> INLINE bool logical_or(T a, T b) { return truth(a) | truth(b); }
template <typename T> INLINE bool logical_xor(T a, T b) { return truth(a) != truth(b); }
template <typename T> INLINE T invert(T x) { if constexpr (is_bool<T>) return !x; else return static_cast<T>(~x); }
template <typename T> INLINE T bitwise_and(T a, T b) { return static_cast<T>(a & b); }
template <typename T> INLINE T bitwise_or(T a, T b) { return static_cast<T>(a | b); }
template <typename T> INLINE T bitwise_xor(T a, T b) { return static_cast<T>(a ^ b); }
template <typename T> INLINE T left_shift(T a, T b) {
    const auto by = static_cast<typename Unsigned<T>::type>(b);
    return by < 8 * sizeof(T) ? static_cast<T>(static_cast<typename Unsigned<T>::type>(a) << by) : T(0);
}
template <typename T> INLINE T right_shift(T a, T b) {
    const auto by = static_cast<typename Unsigned<T>::type>(b);
    return by < 8 * sizeof(T) ? static_cast<T>(a >> by) : static_cast<T>(a < 0 ? -1 : 0);
}

}  // namespace numpy
