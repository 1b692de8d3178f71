// A copy between the memories of two GPUs by a GPU's own threads: loads from a peer, or stores into it.
//
// Limited by the link between the GPUs. A load asks across it and waits a microsecond or so for the
// answer, as bytes under way = rate x that time: each thread has DEPTH loads of 16 bytes out before its
// first store. A store is sent off and nobody waits for it.

typedef unsigned long long u64;

constexpr int DEPTH = 4;

struct alignas(16) Vector {
    u64 low, high;
};

// source, target: aligned to 16 bytes and apart from each other; either may be the peer's. Any grid.
__global__ void peer_copy(const Vector* __restrict__ source, Vector* __restrict__ target, u64 nbytes) {
    const u64 count = nbytes / sizeof(Vector), threads = u64(gridDim.x) * blockDim.x;
    const u64 first = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    u64 i = first;
    for (; i + (DEPTH - 1) * threads < count; i += DEPTH * threads) {
        Vector loaded[DEPTH];
#pragma unroll
        for (int j = 0; j < DEPTH; ++j) loaded[j] = source[i + j * threads];
#pragma unroll
        for (int j = 0; j < DEPTH; ++j) target[i + j * threads] = loaded[j];
    }
    for (; i < count; i += threads) target[i] = source[i];
    // What a vector does not fill, byte by byte.
    const auto* from = reinterpret_cast<const unsigned char*>(source);
    auto* to = reinterpret_cast<unsigned char*>(target);
    for (u64 k = count * sizeof(Vector) + first; k < nbytes; k += threads) to[k] = from[k];
}
