// Elementary functions for loops of a C++17 compiler on the host: no branches and no calls, so that any loop
// that computes them is vectorised.
//
// Each result is within 1 ulp, and depends on the argument alone: neither on the cell's place in a vector, nor
// on the number of ranks, nor on the machine, since +, -, *, /, sqrt and fma are rounded everywhere alike.
// (A processor without fma calls the C library for it, and vectorises nothing here.)
// Functions of float are computed in double, and rounded once. Those of double keep what the last operations
// round off in a second double (T. J. Dekker, Numerische Mathematik 18, 1971; D. E. Knuth, TAOCP 2, 4.2.2).
//
// Arguments are reduced as by P. T. P. Tang (ACM TOMS 15 and 16, 1989-90) and W. J. Cody and W. Waite (Software
// Manual for the Elementary Functions, 1980):
//   exp   x = k ln 2 + r, |r| <= ln(2)/2
//   log   x = 2^k m, m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1)/(m + 1)
//   sin   x = k pi/2 + r, |r| <= pi/4, with pi/2 in three parts
//   atan  the angle of y/x is that of y/x, (y - x)/(y + x) or -x/y, plus 0, pi/4 or pi/2
// All others follow from these four. `far` tells of which arguments the reduction of sin is too short: these few
// are left to the C library.
#pragma once

#include <cmath>
#include <cstring>

#define ELEMENTARY

namespace elementary {

#define INLINE static inline __attribute__((always_inline, unused))

typedef long long int64;
typedef unsigned long long uint64;

// Coefficients of polynomials, the lowest first, which interpolate at the Chebyshev nodes of the reduced range
// EXP of r: (e^r - 1 - r)/r^2; with z = r^2, SIN: (sin(r)/r - 1)/z, COS: (cos r - 1 + z/2)/z^2,
// ATAN: (atan(r)/r - 1)/z; with z = s^2, LOG: (atanh(s)/s - 1)/z, LOG_WIDE: (LOG - 1/3)/z.
// Relative errors of results are below 2^-57, of SHORT ones 2^-32.
constexpr double EXP[] = {0x1.0000000000000p-1, 0x1.5555555555557p-3, 0x1.5555555555556p-5, 0x1.11111111100b8p-7,
    0x1.6c16c16c1612bp-10, 0x1.a01a01abfb27ep-13, 0x1.a01a01a78bc35p-16, 0x1.71de01f4e2345p-19,
    0x1.27e4d980751eap-22, 0x1.af4e67ac2d411p-26, 0x1.1f7688af3862dp-29};
constexpr double EXP_SHORT[] = {0x1.0000000ba3fb9p-1, 0x1.5555555b3ac46p-3, 0x1.5554e890d1ceap-5,
    0x1.1110debc890b5p-7, 0x1.6d43c71de13a5p-10, 0x1.a129ac8df8b9dp-13};
constexpr double LOG[] = {0x1.5555555555558p-2, 0x1.9999999995273p-3, 0x1.2492492dfd86cp-3, 0x1.c71c62d5e53e0p-4,
    0x1.7462b91b8df65p-4, 0x1.39fdcceb4bb45p-4, 0x1.2b5f68a50d903p-4};
constexpr double LOG_SHORT[] = {0x1.5555554ba8b0ep-2, 0x1.9999eb9d6ddfep-3, 0x1.245c273432202p-3,
    0x1.ddd4dad98e4c4p-4};
constexpr double LOG_WIDE[] = {0x1.999999999999ap-3, 0x1.2492492492522p-3, 0x1.c71c71c6ea5acp-4,
    0x1.745d177ad436ap-4, 0x1.3b1395b82701ep-4, 0x1.1118cd67251c5p-4, 0x1.df7ba1f4809c3p-5, 0x1.e03a7acf07f85p-5};
constexpr double SIN[] = {-0x1.5555555555555p-3, 0x1.1111111111110p-7, -0x1.a01a01a01992fp-13, 0x1.71de3a545f836p-19,
    -0x1.ae645410e937bp-26, 0x1.61217d9252c03p-33, -0x1.ab16f5caa198ap-41};
constexpr double SIN_SHORT[] = {-0x1.555555545d0dap-3, 0x1.11110decc73fdp-7, -0x1.a013a455bd213p-13,
    0x1.6dbcfb4dee452p-19};
constexpr double COS[] = {0x1.5555555555555p-5, -0x1.6c16c16c16c16p-10, 0x1.a01a01a019d06p-16,
    -0x1.27e4fb77125c5p-22, 0x1.1eed8deac3dfep-29, -0x1.9394b8bd50ae1p-37, 0x1.ab779550c8d9bp-45};
constexpr double COS_SHORT[] = {0x1.55555555027adp-5, -0x1.6c16bf534c9ebp-10, 0x1.a015c25366932p-16,
    -0x1.25239a9550aefp-22};
constexpr double ATAN[] = {-0x1.5555555555555p-2, 0x1.9999999999997p-3, -0x1.24924924920a3p-3, 0x1.c71c71c6dd2d8p-4,
    -0x1.745d173542f7ap-4, 0x1.3b13aea53b18fp-4, -0x1.1110ce80547d7p-4, 0x1.e1d8ddf459f4dp-5, -0x1.aebcad6415c5dp-5,
    0x1.829a09d7f37d9p-5, -0x1.5030c28013685p-5, 0x1.f5ba271a2a8e8p-6, -0x1.c7a6bc6dde7f9p-7};
constexpr double ATAN_SHORT[] = {-0x1.55555555018d3p-2, 0x1.9999982386384p-3, -0x1.2491bfec7eaaap-3,
    0x1.c6f664c251f89p-4, -0x1.71d214eaeb143p-4, 0x1.2439d1666cb6dp-4, -0x1.4b107f787f967p-5};

constexpr double LN2_HIGH = 0x1.62e42fefa3800p-1, LN2_LOW = 0x1.ef35793c76730p-45;  // HIGH: 42 bits
constexpr double LOG10_2_HIGH = 0x1.34413509f7800p-2, LOG10_2_LOW = 0x1.fef311f12b358p-46;
constexpr double HALF_PI_1 = 0x1.921fb54442d18p+0, HALF_PI_2 = 0x1.1a62633145c07p-54,
                 HALF_PI_3 = -0x1.f1976b7ed8fbcp-110;
constexpr double LOG2_E = 0x1.71547652b82fep+0, TWO_BY_PI = 0x1.45f306dc9c883p-1;
constexpr double WHOLE = 0x1.8p52;  // added to a small number, it leaves the nearest whole number in the last bits
constexpr double FAR = 0x1p30, INF = HUGE_VAL, NOT_A_NUMBER = __builtin_nan("");
constexpr double TINY = 0x1p-60;  // below it, odd functions are their argument
constexpr double LARGE = 0x1p60;  // above it, 1 + x and x^2 + 1 are x and x^2

template <typename R, typename T> INLINE R as(T x) {
    R result;
    std::memcpy(&result, &x, sizeof(R));
    return result;
}
INLINE double where(bool condition, double a, double b) {
    const uint64 mask = -uint64(condition);
    return as<double>((as<uint64>(a) & mask) | (as<uint64>(b) & ~mask));
}
INLINE double fma(double a, double b, double c) { return ::fma(a, b, c); }
INLINE double with_sign(double x, double sign) {
    return as<double>((as<uint64>(x) & ~(1ull << 63)) | (as<uint64>(sign) & 1ull << 63));
}
INLINE bool is_nan(double x) { return x != x; }

// A number as the sum of two, of which the second one is what the first rounds off.
struct Pair { double hi, lo; };

INLINE Pair quick_sum(double a, double b) { const double s = a + b; return {s, b - (s - a)}; }  // |a| >= |b|, or a is 0
INLINE Pair sum(double a, double b) {
    const double s = a + b, t = s - a;
    return {s, (a - (s - t)) + (b - t)};
}
INLINE Pair product(double a, double b) { const double p = a * b; return {p, fma(a, b, -p)}; }
INLINE Pair operator-(Pair a) { return {-a.hi, -a.lo}; }
INLINE Pair operator+(Pair a, double b) { const Pair s = sum(a.hi, b); return quick_sum(s.hi, s.lo + a.lo); }
INLINE Pair operator+(Pair a, Pair b) { const Pair s = sum(a.hi, b.hi); return quick_sum(s.hi, s.lo + (a.lo + b.lo)); }
INLINE Pair operator*(Pair a, double b) { const Pair p = product(a.hi, b); return quick_sum(p.hi, fma(a.lo, b, p.lo)); }
INLINE Pair operator*(Pair a, Pair b) {
    const Pair p = product(a.hi, b.hi);
    return quick_sum(p.hi, fma(a.hi, b.lo, fma(a.lo, b.hi, p.lo)));
}
INLINE Pair operator/(Pair a, Pair b) {
    const double inverse = 1 / b.hi, q = a.hi * inverse;
    return quick_sum(q, (fma(-q, b.hi, a.hi) + fma(-q, b.lo, a.lo)) * inverse);
}
INLINE Pair root(Pair x) {
    const double s = std::sqrt(x.hi), rest = fma(-s, s, x.hi) + x.lo;
    return {s, where(s == 0, 0, rest / (2 * s))};
}
INLINE double root(double x) { return std::sqrt(x); }
INLINE Pair where(bool condition, Pair a, Pair b) {
    return {where(condition, a.hi, b.hi), where(condition, a.lo, b.lo)};
}
INLINE double high(double x) { return x; }
INLINE double high(Pair x) { return x.hi; }
INLINE double low(double) { return 0; }
INLINE double low(Pair x) { return x.lo; }
INLINE double round(double x) { return x; }
INLINE double round(Pair x) { return x.hi + x.lo; }
INLINE double scaled(double x, double power) { return x * power; }  // by a power of two
INLINE Pair scaled(Pair x, double power) { return {x.hi * power, x.lo * power}; }

// What numbers of type T are computed in: N is double or Pair.
template <typename T> struct Wide { typedef Pair N; static constexpr double LARGEST_EXP = 710.5, SMALLEST_EXP = -746; };
template <> struct Wide<float> { typedef double N; static constexpr double LARGEST_EXP = 128, SMALLEST_EXP = -128; };
template <typename N> constexpr bool is_pair = false;
template <> constexpr bool is_pair<Pair> = true;
template <typename N> INLINE N exact(double a, double b) {  // a + b
    if constexpr (is_pair<N>) return sum(a, b); else return a + b;
}
template <typename N> INLINE N constant(double hi, double lo) {
    if constexpr (is_pair<N>) return {hi, lo}; else return hi;
}
template <typename N> INLINE N number(double x) { return constant<N>(x, 0); }
template <typename N> INLINE N ln_2() { return constant<N>(0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56); }

template <int I = 0, int COUNT> INLINE double polynomial(const double (&c)[COUNT], double z) {
    if constexpr (I == COUNT - 1) return c[I]; else return fma(polynomial<I + 1>(c, z), z, c[I]);
}
#define POLYNOMIAL(N, NAME, z) (is_pair<N> ? polynomial(NAME, z) : polynomial(NAME##_SHORT, z))

// 2^k, of WHOLE + k; k from -1022 to 1023.
INLINE double power_of_two(double whole) { return as<double>((as<uint64>(whole) + 1023) << 52); }
INLINE double times_power_of_two(double x, double k) {  // also into the subnormal range
    const double first = fma(k, 0.5, WHOLE);
    return x * power_of_two(first) * power_of_two((k - (first - WHOLE)) + WHOLE);
}

// e^x = 2^k (1 + rest)
template <typename N> struct Exponential { double k; N rest; };

template <typename N> INLINE N exponential_rest(N r) {
    const double q = POLYNOMIAL(N, EXP, high(r));
    if constexpr (is_pair<N>) return quick_sum(r.hi, fma(r.hi * r.hi, q, fma(r.lo, r.hi, r.lo)));
    else return fma(r * r, q, r);
}
template <typename N> INLINE Exponential<N> exponential(N x) {
    const double k = fma(high(x), LOG2_E, WHOLE) - WHOLE, r = fma(-k, LN2_HIGH, high(x));
    if constexpr (is_pair<N>) return {k, exponential_rest<N>(quick_sum(r, fma(-k, LN2_LOW, x.lo)))};
    else return {k, exponential_rest<N>(fma(-k, LN2_LOW, r))};
}
template <typename T, typename N> INLINE double of_exponential(Exponential<N> e) {
    double sum;
    if constexpr (is_pair<N>) {
        const Pair s = quick_sum(1, e.rest.hi);
        sum = s.hi + (s.lo + e.rest.lo);
    } else sum = 1 + e.rest;
    if constexpr (sizeof(T) == 8) return times_power_of_two(sum, e.k);
    else return sum * power_of_two(e.k + WHOLE);
}
INLINE double within(double x, double low, double high) {  // NaN stays
    x = where(x < low, low, x);
    return where(x > high, high, x);
}
template <typename T> INLINE double exp(double x) {
    x = within(x, Wide<T>::SMALLEST_EXP, Wide<T>::LARGEST_EXP);
    return of_exponential<T>(exponential(number<typename Wide<T>::N>(x)));
}
template <typename T> INLINE double exp2(double x) {
    typedef typename Wide<T>::N N;
    x = within(x, sizeof(T) == 8 ? -1080 : -300, sizeof(T) == 8 ? 1025 : 200);
    const double k = (x + WHOLE) - WHOLE;
    const N r = ln_2<N>() * (x - k);
    return of_exponential<T>(Exponential<N>{k, exponential_rest<N>(r)});
}
// (e^x - 1) / 2, of x from -50 to 710
template <typename N> INLINE N half_exp_minus_1(N x) {
    const Exponential<N> e = exponential(x);
    const double half = power_of_two(e.k + (WHOLE - 1));
    return exact<N>(half, -0.5) + scaled(e.rest, half);
}
template <typename T> INLINE double expm1(double x) {
    typedef typename Wide<T>::N N;
    const double result = 2 * round(half_exp_minus_1(number<N>(within(x, -50, 710))));
    return where(std::fabs(x) < TINY, x, where(x > 710, INF, result));
}

// Hyperbolic functions of |x|, of which the quarter of e^|x| does not overflow.
template <typename T> INLINE double sinh(double x) {
    typedef typename Wide<T>::N N;
    const double a = within(std::fabs(x), 0, Wide<T>::LARGEST_EXP);
    const Exponential<N> e = exponential(number<N>(a));
    const double quarter = power_of_two(e.k + (WHOLE - 2));
    const N q = exact<N>(quarter, -0.25) + scaled(e.rest, quarter);  // (e^a - 1) / 4
    const bool large = a > 40;
    const N bounded = where(large, number<N>(1), q);
    const N ratio = where(large, number<N>(0), bounded / (bounded * 4.0 + 1.0));
    const double value = where(a >= Wide<T>::LARGEST_EXP, INF, 2 * round(q + ratio));
    return where(a < TINY, x, with_sign(value, x));
}
template <typename T> INLINE double cosh(double x) {
    typedef typename Wide<T>::N N;
    const double a = within(std::fabs(x), 0, Wide<T>::LARGEST_EXP);
    const Exponential<N> e = exponential(number<N>(a));
    const double quarter = power_of_two(e.k + (WHOLE - 2));
    const N q = number<N>(quarter) + scaled(e.rest, quarter);  // e^a / 4
    const N bounded = where(a > 40, number<N>(0x1p60), q);
    return where(a >= Wide<T>::LARGEST_EXP, INF, 2 * round(q + number<N>(0.0625) / bounded));
}
template <typename T> INLINE double tanh(double x) {
    typedef typename Wide<T>::N N;
    const double a = within(std::fabs(x), 0, 22);
    const N half = half_exp_minus_1(number<N>(2 * a));
    return with_sign(round(half / (half + 1.0)), x);
}

// x = 2^k m; log m = 2 atanh(s).
template <typename N> struct Logarithm { double k; N rest; };

template <bool WIDE, typename N> INLINE N log_of_ratio(N s) {
    if constexpr (!is_pair<N>) return 2 * fma(s * s * s, polynomial(LOG_SHORT, s * s), s);
    else if constexpr (WIDE) {
        const Pair z = s * s;
        const Pair third = {0x1.5555555555555p-2, 0x1.5555555555555p-56};
        Pair inner = third + z.hi * polynomial(LOG_WIDE, z.hi);
        inner.lo += 0.2 * z.lo;
        return scaled(s + s * (z * inner), 2);
    } else {
        const double z = s.hi * s.hi;
        return scaled(quick_sum(s.hi, fma(s.hi * z, polynomial(LOG, z), s.lo)), 2);
    }
}
// Of a positive finite number x + further; a further part of it is at most half an ulp of x, unless x is 1.
template <bool WIDE, typename N> INLINE Logarithm<N> logarithm(double x, N further) {
    const uint64 root_half = 0x3fe6a09e667f3bcdull, bias = 1100;
    const uint64 pattern = as<uint64>(x), biased = (pattern - root_half + (bias << 52)) >> 52;
    const double m = as<double>(pattern - ((biased - bias) << 52));
    const double k = as<double>(biased | 0x4330000000000000ull) - (0x1p52 + double(bias));
    N f;
    if constexpr (is_pair<N>) {
        const double scale = as<double>((1024 + bias - biased) << 52);  // 2^(1 - k)
        const Pair rest = scaled(further, scale);
        f = quick_sum(m - 1, 0.5 * rest.hi);
        f = quick_sum(f.hi, f.lo + 0.5 * rest.lo);
    } else f = (m - 1) + further * as<double>((1023 + bias - biased) << 52);
    return {k, log_of_ratio<WIDE, N>(f / (f + 2.0))};
}
template <typename N> INLINE N of_logarithm(Logarithm<N> l) {
    if constexpr (is_pair<N>) {
        const Pair s = quick_sum(l.k * LN2_HIGH, l.rest.hi);
        return quick_sum(s.hi, s.lo + fma(l.k, LN2_LOW, l.rest.lo));
    } else return fma(l.k, LN2_HIGH, fma(l.k, LN2_LOW, l.rest));
}
// Of a number that may be subnormal.
template <bool WIDE, typename N> INLINE Logarithm<N> logarithm_of(double x) {
    if constexpr (!is_pair<N>) return logarithm<WIDE, N>(x, 0);
    else {
        const bool subnormal = x < 0x1p-1022;
        Logarithm<N> l = logarithm<WIDE, N>(where(subnormal, x * 0x1p54, x), {0, 0});
        l.k -= where(subnormal, 54, 0);
        return l;
    }
}
INLINE double log_or_special(double x, double value) {
    value = where(x == 0, -INF, where(x == INF, INF, value));
    return where(x >= 0, value, NOT_A_NUMBER);
}
template <typename T> INLINE double log(double x) {
    return log_or_special(x, round(of_logarithm(logarithm_of<false, typename Wide<T>::N>(x))));
}
template <typename T> INLINE double log2(double x) {
    typedef typename Wide<T>::N N;
    const Logarithm<N> l = logarithm_of<false, N>(x);
    return log_or_special(x, round(l.rest * constant<N>(0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56) + l.k));
}
template <typename T> INLINE double log10(double x) {
    typedef typename Wide<T>::N N;
    const Logarithm<N> l = logarithm_of<false, N>(x);
    const N part = l.rest * constant<N>(0x1.bcb7b1526e50ep-2, 0x1.95355baaafad3p-57);
    return log_or_special(x, round(part + exact<N>(l.k * LOG10_2_HIGH, l.k * LOG10_2_LOW)));
}
// log(1 + u)
template <typename N> INLINE N log_1_plus(N u) {
    const Pair s = sum(1, high(u));
    if constexpr (is_pair<N>) return of_logarithm(logarithm<false, N>(s.hi, Pair{s.lo, u.lo}));
    else return of_logarithm(logarithm<false, N>(s.hi, s.lo));
}
template <typename T> INLINE double log1p(double x) {
    typedef typename Wide<T>::N N;
    const bool proper = (x > -1) & (x < INF);
    const double value = round(log_1_plus(number<N>(where(proper, x, 1))));
    const double special = where(x == -1, -INF, where(x == INF, INF, NOT_A_NUMBER));
    return where(std::fabs(x) < TINY, x, where(proper, value, special));
}

// Inverse hyperbolic functions
template <typename T> INLINE double arcsinh(double x) {
    typedef typename Wide<T>::N N;
    const double a = std::fabs(x);
    const bool large = a > LARGE, proper = a < INF;
    const N b = number<N>(where(large, 1, a)), square = b * b;
    const N u = where(large, number<N>(where(proper, a, 1)), b + square / (root(square + 1.0) + 1.0));
    const N result = log_1_plus(u) + where(large, ln_2<N>(), number<N>(0));
    return where(a < TINY, x, with_sign(where(proper, round(result), a), x));
}
template <typename T> INLINE double arccosh(double x) {
    typedef typename Wide<T>::N N;
    const bool large = x > LARGE, proper = (x >= 1) & (x < INF);
    const N t = exact<N>(where(large | !proper, 2, x), -1);
    const N u = where(large, number<N>(where(proper, x, 1)), t + root(t * (t + 2.0)));
    const N result = log_1_plus(u) + where(large, ln_2<N>(), number<N>(0));
    return where(proper, round(result), where(x == INF, x, NOT_A_NUMBER));
}
template <typename T> INLINE double arctanh(double x) {
    typedef typename Wide<T>::N N;
    const double a = std::fabs(x), inner = where(a < 1, a, 0.5);
    const N result = log_1_plus(number<N>(2 * inner) / exact<N>(1, -inner));
    const double special = where(a == 1, INF, NOT_A_NUMBER);
    return with_sign(where(a < 1, 0.5 * round(result), special), x);
}

// Powers
template <typename T> INLINE double cbrt(double x) {
    typedef typename Wide<T>::N N;
    const double a = std::fabs(x);
    const bool proper = (a > 0) & (a < INF);
    const N l = of_logarithm(logarithm_of<true, N>(where(proper, a, 1)));
    const N third = l * constant<N>(0x1.5555555555555p-2, 0x1.5555555555555p-56);
    return with_sign(where(proper, of_exponential<T>(exponential(third)), a), x);
}
template <typename T> INLINE double power(double x, double y) {
    typedef typename Wide<T>::N N;
    const double a = std::fabs(x), least = Wide<T>::SMALLEST_EXP, most = Wide<T>::LARGEST_EXP;
    const bool proper = (a > 0) & (a < INF);
    const N l = of_logarithm(logarithm_of<true, N>(where(proper, a, 1)));
    const double special = where(a == 0, -INF, a);  // the logarithm of 0, of infinity, and NaN
    N e = l * y;  // its parts are NaN if they are too large
    const double exponent = where(proper, high(l), special) * y;
    const bool within = (exponent > least) & (exponent < most);
    e = where(within, e, number<N>(where(exponent < 0, least, most)));
    double result = of_exponential<T>(exponential(e));
    result = where(is_nan(exponent), exponent, result);

    const bool whole = std::rint(y) == y, odd = whole & (std::rint(y * 0.5) != y * 0.5);
    result = where((x < 0) & proper & !whole, NOT_A_NUMBER, result);
    result = where(odd, with_sign(result, x), result);
    const bool is_one = (x == 1) | (y == 0) | ((x == -1) & (std::fabs(y) == INF));
    return where(is_one, 1, result);
}
// x to a small whole exponent, from 3 to 7
template <typename T, int EXPONENT> INLINE double whole_power(double x) {
    typedef typename Wide<T>::N N;
    const bool small = std::fabs(x) < 0x1p-100;  // then parts of the product could be too small for a double
    const N once = number<N>(where(small, x * 0x1p128, x)), square = once * once;
    N result = EXPONENT % 2 ? once : number<N>(1);
    if constexpr ((EXPONENT / 2) % 2) result = result * square;
    if constexpr (EXPONENT / 4) result = result * (square * square);
    double plain = EXPONENT % 2 ? x : 1;
    if constexpr ((EXPONENT / 2) % 2) plain *= x * x;
    if constexpr (EXPONENT / 4) plain *= (x * x) * (x * x);
    constexpr double BACK[] = {1, 0x1p-128, 0x1p-256, 0x1p-384, 0x1p-512, 0x1p-640, 0x1p-768, 0x1p-896};
    const double rounded = where(small, round(result) * BACK[EXPONENT], round(result));
    return where(is_nan(rounded) | (plain == 0), plain, rounded);  // parts of an infinite product are NaN
}

// x = k pi/2 + r
template <typename N> struct Angle { uint64 quadrant; N rest; };

template <typename N> INLINE Angle<N> angle(double x) {
    const double whole = fma(x, TWO_BY_PI, WHOLE), k = whole - WHOLE;
    const double a = fma(-k, HALF_PI_1, x);  // exact, unless x is far
    if constexpr (is_pair<N>) {
        const Pair p = product(k, HALF_PI_2), b = sum(a, -p.hi);
        return {as<uint64>(whole), quick_sum(b.hi, b.lo - fma(k, HALF_PI_3, p.lo))};
    } else return {as<uint64>(whole), fma(-k, HALF_PI_2, a)};
}
template <typename N> INLINE N sine(N r) {
    const double z = high(r) * high(r), c = POLYNOMIAL(N, SIN, z);
    if constexpr (is_pair<N>) return quick_sum(r.hi, fma(r.hi * z, c, r.lo * fma(z, -0.5, 1)));
    else return fma(r * z, c, r);
}
template <typename N> INLINE N cosine(N r) {
    if constexpr (is_pair<N>) {
        const Pair z = r * r, s = quick_sum(1, -0.5 * z.hi);
        return quick_sum(s.hi, s.lo + fma(z.hi * z.hi, polynomial(COS, z.hi), -0.5 * z.lo));
    } else {
        const double z = r * r;
        return fma(z * z, polynomial(COS_SHORT, z), fma(z, -0.5, 1));
    }
}
INLINE double negative_if(uint64 bit, double x) { return as<double>(as<uint64>(x) ^ (bit & 1) << 63); }

template <typename T> INLINE double near_sin(double x) {
    typedef typename Wide<T>::N N;
    const Angle<N> a = angle<N>(x);
    const double value = where(a.quadrant & 1, round(cosine(a.rest)), round(sine(a.rest)));
    return where(x == 0, x, negative_if(a.quadrant >> 1, value));
}
template <typename T> INLINE double near_cos(double x) {
    typedef typename Wide<T>::N N;
    const Angle<N> a = angle<N>(x);
    const double value = where(a.quadrant & 1, round(sine(a.rest)), round(cosine(a.rest)));
    return negative_if((a.quadrant + 1) >> 1, value);
}
template <typename T> INLINE double near_tan(double x) {
    typedef typename Wide<T>::N N;
    const Angle<N> a = angle<N>(x);
    const bool odd = a.quadrant & 1;
    const N s = sine(a.rest), c = cosine(a.rest);
    const double value = round(where(odd, c, s) / where(odd, s, c));
    return where(x == 0, x, negative_if(a.quadrant, value));
}
// Whether near_sin, near_cos and near_tan are too inaccurate for a finite number.
INLINE bool far(double x) { return (std::fabs(x) >= FAR) & (std::fabs(x) < INF); }

// The angle of a point, from 0 to pi/2; y, x: not negative, not both 0
template <typename N> INLINE N angle_of(N y, N x) {
    const bool upper = high(y) > 0x1.3504f333f9de6p+1 * high(x);  // tan(3 pi/8)
    const bool lower = high(y) < 0x1.a827999fcef32p-2 * high(x);  // tan(pi/8)
    const N above = where(lower, y, where(upper, -x, y + -x));
    const N below = where(lower, x, where(upper, y, y + x));
    const N t = above / below;
    const double base = where(lower, 0, where(upper, 2, 1)), z = high(t) * high(t), c = POLYNOMIAL(N, ATAN, z);
    if constexpr (is_pair<N>) {
        const Pair s = quick_sum(base * 0x1.921fb54442d18p-1, t.hi);
        return quick_sum(s.hi, s.lo + fma(t.hi * z, c, fma(base, 0x1.1a62633145c07p-55, t.lo)));
    } else return fma(base, 0x1.921fb54442d18p-1, fma(t * z, c, t));
}
template <typename T> INLINE double arctan(double x) {
    typedef typename Wide<T>::N N;
    const double a = std::fabs(x), most = 0x1p100;
    const double value = round(angle_of(number<N>(where(a > most, most, a)), number<N>(1)));
    return where(is_nan(x), x, with_sign(value, x));
}
template <typename T> INLINE double arcsin(double x) {
    typedef typename Wide<T>::N N;
    const double a = std::fabs(x);
    const N across = root(exact<N>(1, -a) * exact<N>(1, a));
    return with_sign(round(angle_of(number<N>(a), across)), x);
}
template <typename T> INLINE double arccos(double x) {
    typedef typename Wide<T>::N N;
    const double a = std::fabs(x);
    const N across = root(exact<N>(1, -a) * exact<N>(1, a)), acute = angle_of(across, number<N>(a));
    return round(where(x < 0, -acute + constant<N>(0x1.921fb54442d18p+1, 0x1.1a62633145c07p-53), acute));
}
template <typename T> INLINE double arctan2(double y, double x) {
    typedef typename Wide<T>::N N;
    const double up = std::fabs(y), across = std::fabs(x);
    const bool unbounded = (up == INF) | (across == INF);
    double a = where(unbounded, up == INF, up), b = where(unbounded, across == INF, across);
    if constexpr (is_pair<N>) {  // quotients of their parts are neither too large nor subnormal
        const double larger = where(a > b, a, b);
        const double scale = where(larger > 0x1p500, 0x1p-500, where(larger < 0x1p-400, 0x1p500, 1));
        a *= scale;
        b *= scale;
    }
    b = where((a == 0) & (b == 0), 1, b);
    const N acute = angle_of(number<N>(a), number<N>(b));
    const bool left = as<uint64>(x) >> 63;
    const double value = round(where(left, -acute + constant<N>(0x1.921fb54442d18p+1, 0x1.1a62633145c07p-53), acute));
    return where(is_nan(x) | is_nan(y), x + y, with_sign(value, y));
}

// The hypotenuse of doubles
INLINE double hypot(double x, double y) {
    x = std::fabs(x);
    y = std::fabs(y);
    const double larger = where(x > y, x, y);
    const double scale = where(larger > 0x1p500, 0x1p-600, where(larger < 0x1p-400, 0x1p600, 1));
    const double a = x * scale, b = y * scale;
    const double value = round(root(product(a, a) + product(b, b))) / scale;
    return where((x == INF) | (y == INF), INF, value);
}

#undef POLYNOMIAL
#undef INLINE

}  // namespace elementary
