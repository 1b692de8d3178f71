// A sum that is rounded once, at its end: its bits depend on no order. For CUDA (NVRTC) and for a C++17 compiler.
//
// It is a number of DIGITS digits of 32 bits, each in a word that has room for the carries of 2^31 additions. Words
// of several threads, blocks and ranks are added as integers.
#pragma once

namespace numpy {

constexpr int DIGITS = 68, LOWEST = -1088;  // the first digit counts units of 2^LOWEST
constexpr int NANS = DIGITS, INFINITE = DIGITS + 1, NEGATIVE = DIGITS + 2;  // words that count such cells
constexpr int SUM_WORDS = 72;

#ifdef __CUDACC_RTC__
#define SELDOM [[maybe_unused]] static __device__ __noinline__
#else
#define SELDOM static __attribute__((noinline, unused))
#endif

INLINE void add_word(uint64* word, int64 value) {
#ifdef __CUDACC_RTC__
    if (value != 0) atomicAdd(word, uint64(value));
#else
    *word += uint64(value);
#endif
}

// Add a number of units of 2^(LOWEST + place). Units below the first digit are multiples of it.
INLINE void add_digits(uint64* words, bool negative, uint64 number, int place) {
    if (place < 0) {
        number = place > -64 ? number >> -place : 0;
        place = 0;
    }
    if (number == 0) return;
    const int shift = place % 32;
    const int64 digits[3] = {uint32(number << shift), uint32(number >> (32 - shift)), uint32(number >> 32 >> (32 - shift))};
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
    for (int i = 0; i < 3; ++i) add_word(words + place / 32 + i, negative ? -digits[i] : digits[i]);
}

// The sign, the exponent and the digits of a double.
struct Parts {
    uint64 number;
    int exponent;
    bool negative;
};
INLINE Parts parts_of(double value) {
    const uint64 pattern = bits<uint64>(value), fraction = pattern & ((uint64(1) << 52) - 1);
    const int exponent = int(pattern >> 52) & 2047;
    return {exponent ? fraction | uint64(1) << 52 : fraction, exponent, pattern >> 63 != 0};
}

SELDOM void add_double(uint64* words, double value) {
    const Parts parts = parts_of(value);
    if (parts.exponent == 2047) {
        const bool nan = parts.number << 12 != 0;
        add_word(words + (nan ? NANS : parts.negative ? NEGATIVE : INFINITE), 1);
        return;
    }
    add_digits(words, parts.negative, parts.number, (parts.exponent ? parts.exponent : 1) - 1075 - LOWEST);
}

// Add, and return whether nothing was rounded: one of the differences shows what the smaller number has lost.
INLINE bool add_checked(double& sum, double other) {
    const double total = sum + other;
    const bool exact = (total - sum == other) & (total - other == sum);
    sum = total;
    return exact;
}
// The same with what is lost, by D. E. Knuth's TwoSum.
INLINE bool add_two(double& high, double& low, double other) {
    const double total = high + other, part = total - high, lost = (high - (total - part)) + (other - part);
    high = total;
    return add_checked(low, lost);
}

}  // namespace numpy
