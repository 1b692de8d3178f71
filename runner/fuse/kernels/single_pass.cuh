// How the threads of single_pass.cu read and write rows; for CUDA (NVRTC), and for a host that has
// __ldg and __funnelshift_r.
#pragma once

// The smaller of two places in a tile: rows past the end are read as the last one.
INLINE int64 clamped(int place, int last) { return place < last ? place : last; }

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
    const uint32 before = static_cast<uint32>(address) & 3;
    const uint32* from = reinterpret_cast<const uint32*>(address - before);
    window.bits = before * 8;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) window.words[i] = __ldg(from + i);
    window.words[COUNT] = __ldg(from + (before + BYTES > COUNT * 4 ? COUNT : COUNT - 1));
    return window;
}

// Shift the words by the row's alignment, known at run time only.
template <int BYTES> INLINE void align(Window<BYTES>& window) {
#pragma unroll
    for (int i = 0; i < Window<BYTES>::COUNT; ++i)
        window.words[i] = __funnelshift_r(window.words[i], window.words[i + 1], window.bits);
}

// Return the element that begins at byte AT.
template <typename T, int AT, int BYTES> INLINE T element(const Window<BYTES>& window) {
    const uint32 word = window.words[AT / 4] >> (AT % 4 * 8);
    if constexpr (numpy::is_bool<T>) return (word & 255) != 0;
    else if constexpr (numpy::Traits<T>::half) return numpy::bits<T>(static_cast<uint16>(word));
    else return static_cast<T>(word);
}

// The largest power of two, up to 16, that divides a number of bytes.
INLINE constexpr int vector_bytes(int bytes) { return bytes % 16 == 0 ? 16 : bytes & -bytes; }

// Write COUNT elements, up to 16 bytes at a time if they begin at a multiple of that.
template <typename T, int COUNT> INLINE void store(T* to, const T (&value)[COUNT]) {
    constexpr int VECTOR = vector_bytes(COUNT * sizeof(T)), EACH = VECTOR / static_cast<int>(sizeof(T));
    struct alignas(VECTOR) Pack {
        T value[EACH];
    };
    if (reinterpret_cast<uint64>(to) % VECTOR == 0) {
#pragma unroll
        for (int i = 0; i < COUNT; i += EACH) {
            Pack pack;
#pragma unroll
            for (int j = 0; j < EACH; ++j) pack.value[j] = value[i + j];
            *reinterpret_cast<Pack*>(to + i) = pack;
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) to[i] = value[i];
    }
}
