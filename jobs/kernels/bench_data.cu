// The data that measurements move, and its check; jobs/measure/patterns.py and exact_reductions.py say what it is, and
// make the same bits. Integer arithmetic only: no rounding, and no type that a GPU may lack.
//
// Limited by the arithmetic of hashing: about 25 instructions for an element, 15 more for each
// rank that is combined into it, for as few bytes as one. Nothing is read but what is checked.

typedef unsigned long long u64;

constexpr u64 PERIOD = 1048573;
constexpr u64 EVERY = ~0ull;  // in place of one rank

enum Kind { UNTOUCHED, COPIED, SUM, PRODUCT, EXTREME, FLOAT_SUM, FLOAT_PRODUCT };

// The fields of the class of this name in recipe.py, in its order.
struct Recipe {
    u64 ranks, window, bits, odd, divisor, alike, identity, mantissa, low, choices, shift, extra, powers, minimum, is_signed;
};
#define RECIPE                                                                                              \
    u64 ranks, u64 window, u64 bits, u64 odd, u64 divisor, u64 alike, u64 identity, u64 mantissa, u64 low, \
        u64 choices, u64 shift, u64 extra, u64 powers, u64 minimum, u64 is_signed
#define FIELDS                                                                                                \
    {ranks, window, bits, odd, divisor, alike, identity, mantissa, low, choices, shift, extra, powers, minimum, \
     is_signed}

// splitmix64's finalizer.
__device__ __forceinline__ u64 mix(u64 x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// A rank's random bits for an element.
__device__ __forceinline__ u64 draw(u64 element, u64 rank) {
    u64 x = element + rank * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 32) * 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
}

// The low 32 bits, scaled to 0 .. number - 1.
__device__ __forceinline__ u64 below(u64 bits, u64 number) { return (bits & 0xffffffffull) * number >> 32; }

__device__ __forceinline__ u64 ones(u64 bits) { return bits < 64 ? (1ull << bits) - 1 : ~0ull; }

// Keys that order as floating-point numbers of these bits do.
template <typename W> __device__ __forceinline__ u64 ordered(u64 bits) {
    constexpr u64 top = 1ull << (8 * sizeof(W) - 1);
    return bits & top ? ~bits & (top | (top - 1)) : bits | top;
}

// What a contributor's random bits stand for, in the form that `add` adds.
template <typename W, int KIND>
__device__ __forceinline__ u64 part(const Recipe& r, u64 element, u64 rank, u64 position) {
    constexpr u64 top = 1ull << (8 * sizeof(W) - 1);
    const u64 x = draw(element, rank);
    const u64 sign = x >> 63 ? top : 0;
    const u64 fraction = x & ones(r.mantissa);
    if constexpr (KIND == SUM) {
        return x & ones(r.bits);
    } else if constexpr (KIND == PRODUCT) {
        return x | 1;
    } else if constexpr (KIND == FLOAT_SUM) {
        const u64 number = (x & ones(r.bits)) + 1;
        return (r.alike ? element & 1 : x >> 63) ? 0 - number : number;
    } else if constexpr (KIND == FLOAT_PRODUCT) {
        // What the factor's bits differ by from those of 1.0: in a product with powers of two, bits add up.
        const u64 one = 1ull << r.mantissa;
        const u64 power = position < r.powers ? (x >> 62 & 1 ? one : 0 - one) : 0;
        return sign + power + (position == 0 ? fraction : 0);
    } else {
        if (!r.mantissa) return x & (top | (top - 1));
        return ordered<W>(sign + ((1 + below(x >> 31, r.choices)) << r.mantissa) + fraction);
    }
}

template <int KIND> __device__ __forceinline__ u64 add(const Recipe& r, u64 total, u64 part) {
    if constexpr (KIND == PRODUCT) return total * part;
    if constexpr (KIND == EXTREME) return (part < total) == (r.minimum != 0) ? part : total;
    return total + part;
}

// The bits of a combination.
template <typename W, int KIND> __device__ __forceinline__ u64 finish(const Recipe& r, u64 element, u64 total) {
    constexpr u64 top = 1ull << (8 * sizeof(W) - 1);
    if constexpr (KIND == SUM) {
        return r.divisor > 1 ? (total & (top | (top - 1))) / r.divisor : total;
    } else if constexpr (KIND == EXTREME) {
        if (r.mantissa) return total & top ? total ^ top : ~total;
        return r.is_signed ? total ^ top : total;
    } else if constexpr (KIND == FLOAT_SUM) {
        if (total == 0) return 0;
        const u64 number = total >> 63 ? 0 - total : total;
        const int zeros = __clzll(static_cast<long long>(number));
        const u64 exponent = r.low + r.shift + below(element >> 32, r.choices) + 63 - zeros;
        // Without its leading one, at the top of the word; then down to the mantissa's place.
        const u64 fraction = (number << zeros << 1) >> (64 - r.mantissa);
        return (exponent << r.mantissa) + fraction + r.extra + (total >> 63 ? top : 0);
    } else {
        return total;
    }
}

// One element: one rank's contribution, or every rank's combined.
template <typename W, int KIND> __device__ __forceinline__ W value(const Recipe& r, u64 place, u64 only) {
    if constexpr (KIND == UNTOUCHED) return static_cast<W>(0xa5a5a5a5a5a5a5a5ull);
    const u64 element = mix(place);
    if constexpr (KIND == COPIED) return static_cast<W>(element);
    u64 rank = below(element, r.ranks);
    u64 total = r.identity;
    if (only != EVERY) {
        const u64 position = only >= rank ? only - rank : only + r.ranks - rank;
        if (position < r.window) total = add<KIND>(r, total, part<W, KIND>(r, element, only, position));
    } else {
        for (u64 position = 0; position < r.window; ++position) {
            u64 next = part<W, KIND>(r, element, rank, position);
            if (r.odd > 1 && rank & 1) next *= r.odd;
            total = add<KIND>(r, total, next);
            rank = rank + 1 == r.ranks ? 0 : rank + 1;
        }
    }
    return static_cast<W>(finish<W, KIND>(r, element, total));
}

// Writes elements index, index + 1, ... of the data that base and recipe make.
template <typename W, int KIND>
__global__ void fill(W* __restrict__ memory, u64 count, u64 base, u64 index, u64 only, RECIPE) {
    const Recipe recipe = FIELDS;
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        memory[i] = value<W, KIND>(recipe, base + (index + i) % PERIOD, only);
    }
}

// found[0] += how many elements are wrong; found[1]: how many there are from the first of them to the end.
// Within `tolerance` units in the last place of a float is right where it is finite, `largest` at most.
template <typename W, int KIND>
__global__ void verify(const W* __restrict__ memory, u64 count, u64 base, u64 index, u64 only, RECIPE, u64 tolerance,
                       u64 largest, u64* __restrict__ found) {
    constexpr u64 magnitude = (1ull << (8 * sizeof(W) - 1)) - 1;
    const Recipe recipe = FIELDS;
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    u64 wrong = 0, left = 0;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const W got = memory[i], expected = value<W, KIND>(recipe, base + (index + i) % PERIOD, only);
        if (got == expected) continue;
        if (tolerance && (got & magnitude) <= largest) {
            const u64 a = ordered<W>(got), b = ordered<W>(expected);
            if ((a < b ? b - a : a - b) <= tolerance) continue;
        }
        if (wrong == 0) left = count - i;
        ++wrong;
    }
    if (wrong) {
        atomicAdd(found, wrong);
        atomicMax(found + 1, left);
    }
}
