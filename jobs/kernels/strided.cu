// Elements of 4 bytes that lie `stride` apart, brought together: target[i] = source[first + i * stride].
//
// Limited by memory, and what it moves is the lesson: whole sectors of 32 bytes, however few of their 8
// elements are wanted. Writes are coalesced at any stride. A thread's EACH loads are all under way before
// the first store, which hides their latency; in each of them a warp's lanes read neighbouring elements.

typedef unsigned long long u64;

// Every block brings EACH * blockDim.x elements.
template <int EACH>
__global__ void strided(const unsigned* __restrict__ source, unsigned* __restrict__ target, u64 count, u64 stride,
                        u64 first) {
    const u64 begin = static_cast<u64>(blockIdx.x) * blockDim.x * EACH + threadIdx.x;
    source += first + begin * stride;
    target += begin;
    const u64 step = blockDim.x * stride;
    if (begin + (EACH - 1) * static_cast<u64>(blockDim.x) < count) {
        unsigned element[EACH];
#pragma unroll
        for (int k = 0; k < EACH; ++k) element[k] = source[k * step];
#pragma unroll
        for (int k = 0; k < EACH; ++k) target[k * static_cast<u64>(blockDim.x)] = element[k];
    } else {
        for (int k = 0; k < EACH; ++k) {
            const u64 i = k * static_cast<u64>(blockDim.x);
            if (begin + i < count) target[i] = source[k * step];
        }
    }
}
