// What the threads of a kernel add to a sum (exact.cuh), and its value. For CUDA (NVRTC) and for a host that runs
// thread by thread.
//
// A thread adds its cells as doubles, and a warp what its threads have as integers of one unit; both check that
// nothing is rounded. Where something would be, which is rare, the cells go to the digits one by one. A sum has
// COPIES, so that few warps change the same word at a time.
#pragma once

namespace numpy {

[[maybe_unused]] constexpr int SUM_COPIES = 64;
[[maybe_unused]] constexpr int WINDOW = 56, SECOND = 52;  // bits of the two integers in which a warp adds

// What a thread has added, exactly: high + low. Of integers, which wrap: total.
template <typename T, bool REAL = Traits<T>::real> struct Sum {
    double high = 0, low = 0;
};
template <typename T> struct Sum<T, false> {
    int64 total = 0;
};

// The copy of this block's threads.
INLINE uint64* own_copy(uint64* words) { return words + blockIdx.x % SUM_COPIES * SUM_WORDS; }

template <int COUNT> INLINE void add_cells(Sum<float>& sum, const float (&cells)[COUNT], uint64* words) {
    double part = cells[0];
    bool exact = true;
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
    for (int i = 1; i < COUNT; ++i) exact = exact & add_checked(part, cells[i]);
    const double before = sum.high;
    if (exact && add_checked(sum.high, part)) return;
    add_double(own_copy(words), before);
    sum.high = exact ? part : 0;
    if (!exact)
        for (int i = 0; i < COUNT; ++i) add_double(own_copy(words), cells[i]);
}
template <int COUNT> INLINE void add_cells(Sum<double>& sum, const double (&cells)[COUNT], uint64* words) {
    double high = cells[0], low = 0;
    bool exact = true;
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
    for (int i = 1; i < COUNT; ++i) exact = exact & add_two(high, low, cells[i]);
    const Sum<double> before = sum;
    if (exact && (add_two(sum.high, sum.low, high) & add_checked(sum.low, low))) return;
    add_double(own_copy(words), before.high);
    add_double(own_copy(words), before.low);
    sum.high = exact ? high : 0;
    sum.low = exact ? low : 0;
    if (!exact)
        for (int i = 0; i < COUNT; ++i) add_double(own_copy(words), cells[i]);
}
template <typename T, int COUNT> INLINE void add_cells(Sum<T, false>& sum, const T (&cells)[COUNT], uint64*) {
    for (int i = 0; i < COUNT; ++i) sum.total += int64(cells[i]);
}

// Have a sum be that of one cell.
template <typename T> INLINE void set_sum(Sum<T>& sum, T cell) {
    if constexpr (Traits<T>::real) sum.high = cell;
    else sum.total = int64(cell);
}

// A warp's operations; a thread of a host is one.
#ifdef __CUDACC_RTC__
constexpr uint32 WARP = 0xffffffffu;
INLINE uint32 warp_max(uint32 value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(WARP, value);
#else
    for (int apart = 16; apart > 0; apart /= 2) value = max(value, __shfl_xor_sync(WARP, value, apart));
    return value;
#endif
}
INLINE uint32 warp_sum(uint32 value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(WARP, value);
#else
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(WARP, value, apart);
    return value;
#endif
}
INLINE bool warp_all(bool value) { return __all_sync(WARP, value); }
INLINE uint32 thread_of_block() { return threadIdx.y * blockDim.x + threadIdx.x; }
INLINE bool whole_warps() { return blockDim.x * blockDim.y % 32 == 0; }
#else
INLINE uint32 warp_max(uint32 value) { return value; }
INLINE uint32 warp_sum(uint32 value) { return value; }
INLINE bool warp_all(bool value) { return value; }
INLINE uint32 thread_of_block() { return 0; }
INLINE bool whole_warps() { return true; }
#endif

// The sum of a warp's integers, in pieces of 27 bits, of which 32 fit a word.
INLINE int64 warp_sum(int64 value) {
    constexpr uint32 MASK = (1u << 27) - 1;
    const uint64 low = warp_sum(uint32(value) & MASK), middle = warp_sum(uint32(value >> 27) & MASK);
    const uint64 high = uint64(int64(int32(warp_sum(uint32(value >> 54)))));
    return int64(low + (middle << 27) + (high << 54));
}

// A number of units of 2^unit, and of 2^(unit - SECOND); exact: whether nothing is left.
struct Fixed {
    int64 first = 0, second = 0;
    bool exact = true;
};
// Add a double below 2^(unit + WINDOW).
template <bool TWO> INLINE void add_fixed(Fixed& fixed, double value, int unit) {
    const Parts parts = parts_of(value);
    const int shift = (parts.exponent ? parts.exponent : 1) - 1075 - unit;
    uint64 first = parts.number, second = 0;
    if (shift >= 0) {
        first <<= shift;
    } else {
        first = shift > -64 ? parts.number >> -shift : 0;
        const uint64 left = shift > -64 ? parts.number - (first << -shift) : parts.number;
        const int further = shift + SECOND;
        if constexpr (TWO) {
            second = further >= 0 ? left << further : further > -64 ? left >> -further : 0;
            if (further < 0) fixed.exact &= further > -64 ? second << -further == left : left == 0;
        } else {
            fixed.exact &= left == 0;
        }
    }
    fixed.first += parts.negative ? -int64(first) : int64(first);
    fixed.second += parts.negative ? -int64(second) : int64(second);
}

// Add what a block's threads have to a sum; all of them call it.
template <typename T> INLINE void keep_sum(const Sum<T>& sum, uint64* words) {
    words = own_copy(words);
    if constexpr (!Traits<T>::real) {
        if (!whole_warps()) return add_word(words, sum.total);
        const int64 total = warp_sum(sum.total);
        if (thread_of_block() % 32 == 0) add_word(words, total);
    } else {
        constexpr bool TWO = sizeof(T) > 4;
        Fixed fixed;
        const int high = parts_of(sum.high).exponent, low = TWO ? parts_of(sum.low).exponent : 0;
        int top = high > low ? high : low;
        fixed.exact = whole_warps();
        if (fixed.exact) {
            top = int(warp_max(uint32(top)));
            add_fixed<TWO>(fixed, sum.high, top - 1022 - WINDOW);
            if constexpr (TWO) add_fixed<TWO>(fixed, sum.low, top - 1022 - WINDOW);
            fixed.exact = warp_all(fixed.exact && top < 2047);
        }
        if (!fixed.exact) {
            add_double(words, sum.high);
            if constexpr (TWO) add_double(words, sum.low);
            return;
        }
        const int64 first = warp_sum(fixed.first), second = TWO ? warp_sum(fixed.second) : 0;
        const int lane = thread_of_block() % 32;
#ifdef __CUDACC_RTC__
        const int64 total = lane == 0 ? first : second;
        const int unit = top - 1022 - WINDOW - (lane == 0 ? 0 : SECOND);
        if (lane < (TWO ? 2 : 1)) add_digits(words, total < 0, uint64(total < 0 ? -total : total), unit - LOWEST);
#else
        const int unit = top - 1022 - WINDOW - LOWEST;
        add_digits(words, first < 0, uint64(first < 0 ? -first : first), unit - lane);
        add_digits(words, second < 0, uint64(second < 0 ? -second : second), unit - SECOND);
#endif
    }
}

// The words that sums of a type have: digits FIRST to before LAST, and the counts.
template <typename T> struct Words {
    static constexpr int FIRST = Traits<T>::real && sizeof(T) == 4 ? 29 : 0;
    static constexpr int LAST = !Traits<T>::real ? 1 : sizeof(T) == 4 ? 42 : DIGITS;
    static constexpr int COUNT = LAST - FIRST + (Traits<T>::real ? 3 : 0);
};
template <typename T> INLINE int word_at(int n) {
    constexpr int DIGITS_OF = Words<T>::LAST - Words<T>::FIRST;
    return n < DIGITS_OF ? Words<T>::FIRST + n : NANS + n - DIGITS_OF;
}

// Add a part of a sum's word to a total; what a digit carries goes to the next one.
template <typename T> INLINE void add_to_total(uint64* total, int at, uint64 low, int64 high) {
    if (Traits<T>::real && at < Words<T>::LAST - 1) {
        add_word(total + at, int64(low));
        add_word(total + at + 1, high);
    } else {
        add_word(total + at, int64(low + (uint64(high) << 32)));
    }
}

// Add up some copies of a sum, which are 0 then; all threads of a block of whole warps call it.
template <typename T> INLINE void gather_sum(uint64* words, int copies, uint64* total) {
#ifdef __CUDACC_RTC__
    const int thread = thread_of_block(), lane = thread % 32, warps = blockDim.x * blockDim.y / 32;
    __syncthreads();  // an earlier total is read no more
    for (int at = thread; at < SUM_WORDS; at += 32 * warps) total[at] = 0;
    __syncthreads();
    for (int n = thread / 32; n < Words<T>::COUNT; n += warps) {
        const int at = word_at<T>(n);
        uint64 low = 0;
        int64 high = 0;
        for (int copy = lane; copy < copies; copy += 32) {
            const uint64 word = words[copy * SUM_WORDS + at];
            words[copy * SUM_WORDS + at] = 0;
            low += uint32(word);
            high += int64(word) >> 32;
        }
        for (int apart = 16; apart > 0; apart /= 2) {
            low += __shfl_xor_sync(WARP, low, apart);
            high += __shfl_xor_sync(WARP, high, apart);
        }
        if (lane == 0) add_to_total<T>(total, at, low, high);
    }
    __syncthreads();
#else
    if (threadIdx.x != 0) return;
    for (int at = 0; at < SUM_WORDS; ++at) total[at] = 0;
    for (int copy = 0; copy < copies; ++copy)
        for (int n = 0; n < Words<T>::COUNT; ++n) {
            uint64& word = words[copy * SUM_WORDS + word_at<T>(n)];
            add_to_total<T>(total, word_at<T>(n), uint32(word), int64(word) >> 32);
            word = 0;
        }
#endif
}

// Write a total that `gather_sum` has made, for other ranks; all threads of a block call it.
INLINE void store_sum(uint64* words, const uint64* total) {
#ifdef __CUDACC_RTC__
    for (int at = threadIdx.x; at < SUM_WORDS; at += blockDim.x) words[at] = total[at];
#else
    for (int at = 0; threadIdx.x == 0 && at < SUM_WORDS; ++at) words[at] = total[at];
#endif
}

// A total as a number, rounded to the nearest, of two to the even one. It is changed.
template <typename T> INLINE T round_sum(uint64* total) {
    if constexpr (!Traits<T>::real) {
        return T(total[0]);
    } else {
        typedef typename Key<sizeof(T)>::type K;
        constexpr int FIRST = Words<T>::FIRST, LAST = Words<T>::LAST, PLACES = sizeof(T) == 4 ? 24 : 53;
        constexpr int BIAS = sizeof(T) == 4 ? 127 : 1023;
        constexpr K INFINITY_BITS = K(2 * BIAS + 1) << (PLACES - 1), SIGN = K(1) << (8 * sizeof(T) - 1);
        const bool above = total[INFINITE] != 0, below = total[NEGATIVE] != 0;
        if (total[NANS] != 0 || (above && below)) return bits<T>(K(INFINITY_BITS | K(1) << (PLACES - 2)));
        if (above || below) return bits<T>(K(INFINITY_BITS | (below ? SIGN : 0)));
        // Carry, and take the absolute value.
        int64 carry = 0;
        for (int k = FIRST; k < LAST; ++k) {
            carry += int64(total[k]);
            total[k] = uint32(carry);
            carry >>= 32;
        }
        const bool negative = carry < 0;
        uint64 more = 1;
        for (int k = FIRST; negative && k < LAST; ++k) {
            more += uint32(~total[k]);
            total[k] = uint32(more);
            more >>= 32;
        }
        int k = LAST - 1;
        while (k >= FIRST && total[k] == 0) --k;
        if (k < FIRST) return T(0);
        // The 64 bits from the highest one on, and whether any bit follows.
        int lead = 0;
        while ((total[k] << lead & 0x80000000u) == 0) ++lead;
        const uint64 next = k - 1 >= FIRST ? total[k - 1] : 0, last = k - 2 >= FIRST ? total[k - 2] : 0;
        const uint64 number = (total[k] << 32 | next) << lead | last >> (32 - lead);
        uint64 rest = uint32(last << lead);
        for (int j = FIRST; j < k - 2; ++j) rest |= total[j];
        // Round. A number below the normal range has fewer places, and is exact: cells are multiples of the last.
        const int exponent = 32 * k + 31 - lead + LOWEST;
        if (exponent > BIAS) return bits<T>(K(INFINITY_BITS | (negative ? SIGN : 0)));
        const int places = exponent < 1 - BIAS ? PLACES - (1 - BIAS - exponent) : PLACES;
        const uint64 half = uint64(1) << (63 - places), dropped = number & (2 * half - 1);
        uint64 rounded = number >> (64 - places);
        if (dropped > half || (dropped == half && (rest != 0 || rounded & 1))) ++rounded;
        K pattern = K(rounded);
        if (places == PLACES) pattern += K(exponent + BIAS - 1) << (PLACES - 1);
        return bits<T>(K(pattern | (negative ? SIGN : 0)));
    }
}

}  // namespace numpy
