// Several small elements in one 32-bit word: four of one byte, two of two bytes, the first one in the lowest
// bits. The bits of each are those of operations.cuh. For CUDA (NVRTC), and for a host that has
// __funnelshift_r.
//
// A bool is the highest bit of an element of the operands' size; the bits below it may be anything.
#pragma once

namespace packed {

// Words that hold BITS in each element of SIZE bytes.
template <int SIZE> INLINE constexpr uint32 every(uint32 bits) {
    return SIZE == 1 ? bits * 0x01010101u : bits * 0x00010001u;
}
template <int SIZE> constexpr uint32 top = every<SIZE>(SIZE == 1 ? 0x80 : 0x8000);

INLINE uint32 permuted(uint32 a, uint32 b, uint32 selector) {
#ifdef __CUDACC_RTC__
    uint32 result;  // __byte_perm takes no selectors of 8 and more, which repeat a byte's highest bit
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
    return result;
#else
    const uint64 bytes = uint64(b) << 32 | a;
    uint32 result = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32 chosen = selector >> (4 * i), byte = bytes >> (chosen % 8 * 8) & 255;
        result |= (chosen & 8 ? byte >> 7 ? 255u : 0u : byte) << (8 * i);
    }
    return result;
#endif
}

// (a & b) ^ c in one instruction, and a * b + c in the units that multiply: the others are those that words
// keep busy. The compiler would write other instructions.
INLINE uint32 low_xor(uint32 a, uint32 b, uint32 c) {
#ifdef __CUDACC_RTC__
    uint32 result;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
#else
    return (a & b) ^ c;
#endif
}
INLINE uint32 multiply_add(uint32 a, uint32 b, uint32 c) {
#ifdef __CUDACC_RTC__
    uint32 result;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
#else
    return a * b + c;
#endif
}

// Element I as a value of its type, and as a float. 2^23 plus a small integer is a float whose lowest bits are
// the integer's: exact, and faster than a conversion.
template <typename T, int I> INLINE T element(uint32 word) {
    const uint32 value = word >> (I * sizeof(T) * 8);
    if constexpr (numpy::Traits<T>::half) return numpy::bits<T>(static_cast<uint16>(value));
    else return static_cast<T>(value);
}
template <int SIZE, int I> INLINE bool flag(uint32 word) { return word >> ((I + 1) * SIZE * 8 - 1) & 1; }
template <typename T, int I> INLINE float as_float(uint32 word) {
    constexpr uint32 moved = numpy::is_signed<T> ? sizeof(T) == 1 ? 0x80 : 0x8000 : 0;
    constexpr uint32 selector = sizeof(T) == 1 ? 0x7440 | I : 0x7410 | I * 0x22;
    const uint32 bits = permuted(word ^ every<sizeof(T)>(moved), 0x4b000000, selector);
    return numpy::bits<float>(bits) - static_cast<float>(0x800000 + moved);
}

// One word of elements.
template <typename T> INLINE uint32 bits(T x) {
    if constexpr (numpy::Traits<T>::half) return numpy::bits<uint16>(x);
    else if constexpr (sizeof(T) == 1) return static_cast<uint8>(x);
    else return static_cast<uint16>(x);
}
template <typename T> INLINE uint32 all(T x) { return every<sizeof(T)>(bits(x)); }
template <typename T> INLINE uint32 gather(T a, T b) { return permuted(bits(a), bits(b), 0x5410); }
template <typename T> INLINE uint32 gather(T a, T b, T c, T d) {
    return permuted(permuted(bits(a), bits(b), 0x0040), permuted(bits(c), bits(d), 0x0040), 0x5410);
}
INLINE uint32 halves(float a, float b) {
#ifdef __CUDACC_RTC__
    const __half2 both = __floats2half2_rn(a, b);
    return *reinterpret_cast<const uint32*>(&both);
#else
    return gather(numpy::cast<Half>(a), numpy::cast<Half>(b));
#endif
}
// The elements from the I-th of the first word on.
template <int SIZE, int I> INLINE uint32 from(uint32 first, uint32 second) {
    return __funnelshift_r(first, second, I * SIZE * 8);
}

// Integers of two bytes; on CUDA, one instruction each from compute capability 9.0 on.
#ifdef __CUDACC_RTC__
#define LANES(NAME, INTRINSIC, OPERATION) \
    INLINE uint32 NAME(uint32 a, uint32 b) { return INTRINSIC(a, b); }
#else
#define LANES(NAME, INTRINSIC, OPERATION)                                             \
    INLINE uint32 NAME(uint32 a, uint32 b) {                                          \
        uint32 result = 0;                                                            \
        for (int shift = 0; shift < 32; shift += 16) {                                \
            const uint16 x = a >> shift, y = b >> shift;                              \
            const int16 signed_x = x, signed_y = y;                                   \
            (void)signed_x, (void)signed_y;                                           \
            result |= uint32(uint16(OPERATION)) << shift;                             \
        }                                                                             \
        return result;                                                                \
    }
#endif
LANES(add2, __vadd2, x + y)
LANES(subtract2, __vsub2, x - y)
LANES(least_unsigned2, __vminu2, x < y ? x : y)
LANES(most_unsigned2, __vmaxu2, x > y ? x : y)
LANES(least_signed2, __vmins2, signed_x < signed_y ? x : y)
LANES(most_signed2, __vmaxs2, signed_x > signed_y ? x : y)
#undef LANES

// Four bytes as two words, of the even and of the odd elements, each in 16 bits. There they may be larger than a
// byte, so that sums of a few are sums of words; the generator knows how large. A byte is the lowest 8 bits.
struct Pair {
    uint32 even, odd;
};
INLINE Pair split(uint32 word) {
    const uint32 odd = permuted(word, 0, 0x4341);
    return {multiply_add(odd, 0u - 256, word), odd};
}
INLINE uint32 join(Pair pair) { return permuted(pair.even, pair.odd, 0x6240); }
template <int I> INLINE Pair from(Pair first, Pair second) {
    static_assert(I > 0 && I < 4, "");
    const uint32 even = __funnelshift_r(first.even, second.even, 16);
    const uint32 odd = __funnelshift_r(first.odd, second.odd, 16);
    if constexpr (I == 1) return {first.odd, even};
    else if constexpr (I == 2) return {even, odd};
    else return {odd, second.even};
}
INLINE Pair add(Pair a, Pair b) { return {a.even + b.even, a.odd + b.odd}; }
// a + (ABOVE - b) of each element, where ABOVE is a multiple of 256 that is not below b.
template <uint32 ABOVE> INLINE Pair subtract(Pair a, Pair b) {
    constexpr uint32 above = every<2>(ABOVE);
    return {a.even + above - b.even, a.odd + above - b.odd};
}
template <uint32 FACTOR> INLINE Pair scaled(Pair a) { return {a.even * FACTOR, a.odd * FACTOR}; }

// Arithmetic on two elements of two bytes.
template <typename T> INLINE uint32 lanes(T (*operation)(T, T), uint32 a, uint32 b) {
    return gather(operation(element<T, 0>(a), element<T, 0>(b)), operation(element<T, 1>(a), element<T, 1>(b)));
}
#ifdef __CUDACC_RTC__
// Rounded once, a sum or product of two halves is the float that operations.cuh rounds: 24 bits are twice 11,
// and two more. `_rn`: never contracted.
INLINE __half2 pair_of_halves(uint32 word) { return *reinterpret_cast<const __half2*>(&word); }
INLINE uint32 word_of(__half2 both) { return *reinterpret_cast<const uint32*>(&both); }
#define HALVES(INTRINSIC, NAME) return word_of(INTRINSIC(pair_of_halves(a), pair_of_halves(b)))
#else
#define HALVES(INTRINSIC, NAME) return lanes<T>(numpy::NAME<T>, a, b)
#endif
template <typename T> INLINE uint32 add(uint32 a, uint32 b) {
    if constexpr (numpy::Traits<T>::half) { HALVES(__hadd2_rn, add); } else return add2(a, b);
}
template <typename T> INLINE uint32 subtract(uint32 a, uint32 b) {
    if constexpr (numpy::Traits<T>::half) { HALVES(__hsub2_rn, subtract); } else return subtract2(a, b);
}
template <typename T> INLINE uint32 multiply(uint32 a, uint32 b) {
    if constexpr (numpy::Traits<T>::half) { HALVES(__hmul2_rn, multiply); }
    else return permuted(a * b, (a >> 16) * (b >> 16), 0x5410);
}
#undef HALVES
template <typename T> INLINE uint32 negative(uint32 a) {
    if constexpr (numpy::Traits<T>::half) return a ^ 0x80008000u; else return subtract2(0, a);
}
template <typename T> INLINE uint32 absolute(uint32 a) {
    static_assert(numpy::Traits<T>::half, "");
    return a & 0x7fff7fffu;
}

// Comparisons of integers.
template <typename T> INLINE uint32 not_equal(uint32 a, uint32 b) {
    constexpr uint32 low = ~top<sizeof(T)>;
    return (low_xor(a, low, b & low) + low) | (a ^ b);
}
template <typename T> INLINE uint32 equal(uint32 a, uint32 b) { return ~not_equal<T>(a, b); }
template <typename T> INLINE uint32 less(uint32 a, uint32 b) {
    constexpr uint32 high = top<sizeof(T)>;
    const uint32 not_below = (a | high) - (b & ~high);
    const uint32 differ = numpy::is_signed<T> ? a & ~b : ~a & b;
    return differ | (~(a ^ b) & ~not_below);
}
template <typename T> INLINE uint32 greater(uint32 a, uint32 b) { return less<T>(b, a); }
template <typename T> INLINE uint32 less_equal(uint32 a, uint32 b) { return ~less<T>(b, a); }
template <typename T> INLINE uint32 greater_equal(uint32 a, uint32 b) { return ~less<T>(a, b); }

// Bools: all bits of an element, and 0 or 1.
template <int SIZE> INLINE uint32 whole(uint32 flags) { return permuted(flags, 0, SIZE == 1 ? 0xba98 : 0xbb99); }
template <int SIZE> INLINE uint32 ones(uint32 flags) { return (flags & top<SIZE>) >> (SIZE * 8 - 1); }
INLINE uint32 where_flags(uint32 flags, uint32 a, uint32 b) { return (flags & a) | (~flags & b); }
template <typename T> INLINE uint32 where(uint32 flags, uint32 a, uint32 b) {
    return where_flags(whole<sizeof(T)>(flags), a, b);
}

template <typename T> INLINE uint32 minimum(uint32 a, uint32 b) {
    if constexpr (sizeof(T) == 1) return where<T>(less<T>(a, b), a, b);
    else return numpy::is_signed<T> ? least_signed2(a, b) : least_unsigned2(a, b);
}
template <typename T> INLINE uint32 maximum(uint32 a, uint32 b) {
    if constexpr (sizeof(T) == 1) return where<T>(less<T>(a, b), b, a);
    else return numpy::is_signed<T> ? most_signed2(a, b) : most_unsigned2(a, b);
}

}  // namespace packed
