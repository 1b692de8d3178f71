// Numbers of any type to bfloat16, by way of float: round half to even; NaN keeps its sign, not its payload. The
// same bits as ml_dtypes.
//
// Limited by memory: an element is read once and written once, 6 bytes for float. A thread has four loads of 16
// bytes under way before it stores the first result.

#include "common.cuh"

constexpr int THREADS = 256, DEPTH = 4;

// `N` elements that are moved at once. The alignment is that of the widest access, 16 bytes.
template <typename T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Packed {
    T values[N];
};

template <typename T> __device__ __forceinline__ unsigned short rounded(T value) {
    const float number = widen<float>(value);
    if (number != number) {  // conversions to float lose the sign
        const unsigned char top = reinterpret_cast<const unsigned char*>(&value)[sizeof(T) - 1];
        return static_cast<unsigned short>((top & 0x80u) << 8 | 0x7fc0u);
    }
    const unsigned bits = __float_as_uint(number);  // of infinities, the lower half is 0
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// A thread for every DEPTH * N elements. Addresses are aligned as Packed of both types. source: rows of `columns`
// elements, `pitch` elements apart; one row, or both are multiples of N. target: without gaps.
template <typename T, int N>
__global__ void round_bfloat16(const T* __restrict__ source, unsigned short* __restrict__ target, long long count,
                               long long columns, long long pitch) {
    const long long packs = count / N, across = columns / N, apart = pitch / N;
    const long long first = static_cast<long long>(blockIdx.x) * (THREADS * DEPTH) + threadIdx.x;
    const Packed<T, N>* from = reinterpret_cast<const Packed<T, N>*>(source);
    Packed<unsigned short, N>* to = reinterpret_cast<Packed<unsigned short, N>*>(target);
    Packed<T, N> held[DEPTH];
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
        const long long pack = first + i * THREADS;
        if (pack < packs) held[i] = from[pack / across * apart + pack % across];
    }
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
        if (first + i * THREADS >= packs) break;
        Packed<unsigned short, N> words;
#pragma unroll
        for (int k = 0; k < N; ++k) words.values[k] = rounded(held[i].values[k]);
        to[first + i * THREADS] = words;
    }
    const long long rest = packs * N + threadIdx.x;  // fewer than N elements, of a single row
    if (blockIdx.x == 0 && rest < count) target[rest] = rounded(source[rest]);
}
