// A checksum of a message: the sum of its hashed 64-bit words, modulo 2^64.
//
// Limited by memory: each byte is read once. The hash depends on a word's place, so that words which have changed
// places change the sum; a sum has no order, so that threads may add in any.

typedef unsigned long long u64;
typedef long long i64;
typedef unsigned char u8;

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): each bit of the word changes about half of the result's.
__device__ u64 hashed(u64 word, u64 place) {
    u64 bits = word ^ (place + 1) * 0x9E3779B97F4A7C15ull;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    return bits ^ (bits >> 31);
}

// The word at `at`, little endian, read in units by which `at` is aligned.
template <typename Unit> __device__ u64 word_at(const u8* at) {
    const Unit* units = reinterpret_cast<const Unit*>(at);
    u64 word = 0;
#pragma unroll
    for (int n = 0; n < int(8 / sizeof(Unit)); ++n) word |= u64(units[n]) << (8 * sizeof(Unit) * n);
    return word;
}

template <typename Unit> __device__ u64 sum_words(const u8* data, i64 words) {
    u64 sum = 0;
    const i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 n = i64(blockIdx.x) * blockDim.x + threadIdx.x; n < words; n += step)
        sum += hashed(word_at<Unit>(data + 8 * n), u64(n));
    return sum;
}

// data: of any alignment. trailer: number, bytes and sum of the message; the sum is added to what is there.
extern "C" __global__ void checksum(const u8* data, i64 bytes, u64 number, u64* trailer) {
    __shared__ u64 total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    const i64 words = bytes / 8;
    const u64 address = reinterpret_cast<u64>(data);
    u64 sum = address % 8 == 0   ? sum_words<u64>(data, words)
              : address % 4 == 0 ? sum_words<unsigned>(data, words)
                                 : sum_words<u8>(data, words);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        u64 last = 0;
        for (i64 n = 8 * words; n < bytes; ++n) last |= u64(data[n]) << (8 * (n - 8 * words));
        if (bytes % 8) sum += hashed(last, u64(words));
        trailer[0] = number;
        trailer[1] = u64(bytes);
    }
    atomicAdd(&total, sum);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(trailer + 2, total);
}
