// Reading alone: a grid that just fills the GPU adds up what it reads, so that nothing can be left out.
//
// Limited by the memory, given enough bytes under way: a thread has 12 loads of 16 bytes in flight. Loads go
// past the L1 (`cg`). The sums are written once, after all copies.

constexpr int DEPTH = 12;

// source: rounds x (threads of the grid) units of 16 bytes, read `copies` times. target: a unit per thread gets
// the sums of both of its 8-byte words, modulo 2 ** 64.
__global__ void read_streaming(ulonglong2* target, const ulonglong2* source, unsigned long long rounds, unsigned copies) {
    const unsigned long long threads = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    const unsigned long long first = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    ulonglong2 sum = {0, 0};
    for (unsigned copy = 0; copy < copies; ++copy) {
        const ulonglong2* from = source + first;
        unsigned long long left = rounds;
        for (; left >= DEPTH; left -= DEPTH) {
            ulonglong2 held[DEPTH];
#pragma unroll
            for (int i = 0; i < DEPTH; ++i, from += threads) held[i] = __ldcg(from);
#pragma unroll
            for (int i = 0; i < DEPTH; ++i) sum.x += held[i].x, sum.y += held[i].y;
        }
        for (; left > 0; --left, from += threads) {
            const ulonglong2 held = __ldcg(from);
            sum.x += held.x, sum.y += held.y;
        }
    }
    target[first] = sum;
}
