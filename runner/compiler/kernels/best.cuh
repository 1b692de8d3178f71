// The largest or smallest of what all threads compute, as a key: larger keys win, 0 is none. For CUDA (NVRTC)
// and for a host that runs thread by thread.
//
// Keys are kept in memory of the device. Their order does not depend on the order of the threads, and a cell
// that two threads make counts once.
#pragma once

namespace numpy {

template <int BYTES> struct Key { typedef uint32 type; };
template <> struct Key<8> { typedef uint64 type; };

// NaN wins, both zeros are one. LEAST: smaller values have larger keys.
template <bool LEAST, typename T> INLINE typename Key<sizeof(T)>::type to_key(T value) {
    typedef typename Key<sizeof(T)>::type K;
    static_assert(sizeof(T) >= 4, "");
    constexpr K TOP = K(1) << (8 * sizeof(T) - 1);
    if constexpr (Traits<T>::real) {
        if (isnan(value)) return ~K(0);
        const K pattern = bits<K>(T(value + T(0)));
        const K key = pattern & TOP ? ~pattern : pattern | TOP;
        return LEAST ? ~key : key;
    } else {
        const K key = is_signed<T> ? K(value) ^ TOP : K(value);
        return LEAST ? ~key : key;
    }
}

template <typename T, bool LEAST> INLINE T from_key(uint64 found) {
    typedef typename Key<sizeof(T)>::type K;
    constexpr K TOP = K(1) << (8 * sizeof(T) - 1);
    const K key = LEAST ? ~K(found) : K(found);
    if constexpr (Traits<T>::real) {
        if (K(found) == ~K(0)) return bits<T>(sizeof(T) == 4 ? K(0x7fc00000u) : K(0x7ff8000000000000ull));
        return bits<T>(K(key & TOP ? key ^ TOP : ~key));
    } else {
        return T(is_signed<T> ? key ^ TOP : key);
    }
}

// Keep the best key of a block's threads; all of them call it.
template <bool LEAST, typename T> INLINE void keep_best(T value, uint64* kept) {
    auto key = to_key<LEAST>(value);
#ifdef __CUDACC_RTC__
    __shared__ decltype(key) best;
    const uint32 threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
    if (thread == 0) best = 0;
    __syncthreads();
    if (threads % 32 == 0) {
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) {
            const auto other = __shfl_xor_sync(0xffffffffu, key, apart);
            if (other > key) key = other;
        }
    }
    if (threads % 32 != 0 || thread % 32 == 0) atomicMax(&best, key);
    __syncthreads();
    // Most blocks find a better key there: they read it, which takes less than to change it.
    if (thread == 0 && best > *static_cast<volatile uint64*>(kept)) atomicMax(kept, uint64(best));
#else
    if (key > *kept) *kept = key;
#endif
}

template <typename T> INLINE void set_slot(uint64* slot, T value) {
#ifdef __CUDACC_RTC__
    *reinterpret_cast<T*>(slot) = value;
#else
    std::memcpy(slot, &value, sizeof(T));
#endif
}

}  // namespace numpy
