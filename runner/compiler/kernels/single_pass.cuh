// How the threads of single_pass.cu read and write rows; for CUDA (NVRTC), and for a host that has
// __ldg and __funnelshift_r.
#pragma once

// A function of a struct that is not inlined, and one that is.
#ifdef __CUDACC_RTC__
#define OUTLINE static __device__ __noinline__
#define INLINED static __device__ __forceinline__
#else
#define OUTLINE static __attribute__((noinline))
#define INLINED static inline __attribute__((always_inline))
#endif

// BYTES bytes of a row, from any address on: words[i] has bytes 4 * i to 4 * i + 3 once they are aligned.
// Elements of one or two bytes are read so, in a quarter of the instructions.
template <int BYTES> struct Window {
    static constexpr int COUNT = (BYTES + 3) / 4;
    uint32 words[COUNT + 1], bits;
};

// Read the aligned words that hold the bytes, and no other: the next one may lie past the array's end.
template <int BYTES> INLINE Window<BYTES> fetch(const void* first) {
    constexpr int COUNT = Window<BYTES>::COUNT;
    Window<BYTES> window;
    const uint64 address = reinterpret_cast<uint64>(first);
    const uint32* from = reinterpret_cast<const uint32*>(address & ~uint64(3));
    window.bits = static_cast<uint32>(address) * 8;  // of which __funnelshift_r takes the lowest 5
#pragma unroll
    for (int i = 0; i < COUNT; ++i) window.words[i] = __ldg(from + i);
    window.words[COUNT] = 0;
    if ((address & 3) > COUNT * 4 - BYTES) window.words[COUNT] = __ldg(from + COUNT);
    return window;
}

// One or two elements, of one or two bytes, in the lowest bits of a word that is aligned.
struct Few {
    uint32 words[2];
};
template <int COUNT, typename T> INLINE Few fetch_few(const T* first) {
    static_assert(COUNT <= 2 && sizeof(T) <= 2, "");
    uint32 word = __ldg(first);
    if constexpr (COUNT == 2) word |= uint32(__ldg(first + 1)) << (8 * sizeof(T));
    return {{word, 0}};
}
INLINE void align(Few&) {}

// COUNT elements side by side, of 8 or 16 bytes, at a multiple of these.
template <int COUNT, typename T> struct alignas(COUNT * sizeof(T)) Unit {
    T item[COUNT];
};
template <int COUNT, typename T> INLINE Unit<COUNT, T> fetch_unit(const T* first) {
#ifdef __CUDACC_RTC__
    static_assert(COUNT * sizeof(T) == 8 || COUNT * sizeof(T) == 16, "");
    if constexpr (COUNT * sizeof(T) == 8) return numpy::bits<Unit<COUNT, T>>(__ldg(reinterpret_cast<const uint2*>(first)));
    else return numpy::bits<Unit<COUNT, T>>(__ldg(reinterpret_cast<const uint4*>(first)));
#else
    return *reinterpret_cast<const Unit<COUNT, T>*>(first);
#endif
}

// Shift the words by the row's alignment, known at run time only.
template <int BYTES> INLINE void align(Window<BYTES>& window) {
#pragma unroll
    for (int i = 0; i < Window<BYTES>::COUNT; ++i)
        window.words[i] = __funnelshift_r(window.words[i], window.words[i + 1], window.bits);
}

// Move elements of SIZE bytes by one, to the front. `next` comes at the end.
template <int COUNT, int SIZE> INLINE void move(uint32* words, uint32 next) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        words[i] = __funnelshift_r(words[i], i == COUNT - 1 ? next : words[i + 1], 8 * SIZE);
}

// The place along an axis of the own cell that a place up to an axis' length beyond its ends equals.
enum class Ends { reflect, mirror, nearest, wrap };
template <Ends KIND, typename T> INLINE T own_place(T place, T length) {
    if (place >= 0 && place < length) return place;
    if (KIND == Ends::wrap) return place < 0 ? place + length : place - length;
    if (KIND == Ends::nearest) return place < 0 ? 0 : length - 1;
    if (KIND == Ends::reflect) return place < 0 ? -1 - place : 2 * length - 1 - place;
    return place < 0 ? -place : 2 * length - 2 - place;
}

// Replace an element of BITS bits in aligned words by one of the same row.
template <int BITS, int PLACE, typename T> INLINE void insert(uint32* words, const T* from) {
    constexpr int EACH = 32 / BITS, SHIFT = PLACE % EACH * BITS;
    constexpr uint32 MASK = ((1u << BITS) - 1) << SHIFT;
    const uint32 value = BITS == 8 ? __ldg(reinterpret_cast<const uint8*>(from))
                                   : __ldg(reinterpret_cast<const uint16*>(from));
    words[PLACE / EACH] = (words[PLACE / EACH] & ~MASK) | value << SHIFT;
}

// The largest power of two, up to 16, that divides a number of bytes.
INLINE constexpr int vector_bytes(int bytes) { return bytes % 16 == 0 ? 16 : bytes & -bytes; }

// 0 if vectors of a row of BYTES bytes begin at multiples of their size.
template <int BYTES> INLINE uint32 misaligned(const void* to) {
    return static_cast<uint32>(reinterpret_cast<uint64>(to)) & (vector_bytes(BYTES) - 1);
}

// Write a row in units of EACH elements, which begin at multiples of their size.
template <int EACH, typename T, int COUNT> INLINE void store_units(void* to, const T (&value)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT / EACH; ++i) {
        Unit<EACH, T> unit;
#pragma unroll
        for (int j = 0; j < EACH; ++j) unit.item[j] = value[i * EACH + j];
        static_cast<Unit<EACH, T>*>(to)[i] = unit;
    }
}

// Write a row in vectors of up to 16 bytes, which begin at multiples of that.
template <typename T, int COUNT> INLINE void store_vectors(void* to, const T (&value)[COUNT]) {
    store_units<vector_bytes(COUNT * sizeof(T)) / sizeof(T)>(to, value);
}

// Write a row element by element.
template <typename T, int COUNT> INLINE void store_elements(T* to, const T (&value)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) to[i] = value[i];
}

// Write all words, of elements of ELEMENT bytes, in whole aligned words but for some elements at both ends.
template <int ELEMENT, int COUNT> INLINE void store_words(void* to, const uint32 (&words)[COUNT]) {
    const uint64 address = reinterpret_cast<uint64>(to);
    const uint32 head = static_cast<uint32>(-address) & 3;  // bytes before the first aligned word
    uint32* const whole = reinterpret_cast<uint32*>(address + head);
    const auto part = [&](uint32 at, uint32 word) {
        if constexpr (ELEMENT == 1) static_cast<uint8*>(to)[at] = static_cast<uint8>(word);
        else static_cast<uint16*>(to)[at / 2] = static_cast<uint16>(word);
    };
#pragma unroll
    for (uint32 i = 0; i < 4; i += ELEMENT)
        if (i < head) part(i, words[0] >> (i * 8));
#pragma unroll
    for (int i = 0; i < COUNT - 1; ++i) whole[i] = __funnelshift_r(words[i], words[i + 1], head * 8);
    if (head == 0) {
        whole[COUNT - 1] = words[COUNT - 1];
        return;
    }
#pragma unroll
    for (uint32 i = ELEMENT; i < 4; i += ELEMENT)
        if (i >= head) part((COUNT - 1) * 4 + i, words[COUNT - 1] >> (i * 8));
}
