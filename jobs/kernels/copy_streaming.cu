// A copy of many bytes by a grid that just fills the GPU: 512 threads on each multiprocessor, each going
// through the memory in strides of the whole grid.
//
// Limited by the memory or by the link between source and target, given enough bytes under way to hide
// their latency: a thread has 12 loads of 16 bytes in flight before it stores the first, which makes
// 96 KiB on a multiprocessor. Bytes moved: each is read once and written once for each of the copies, which
// are made in one launch so that launching is paid once.

constexpr int DEPTH = 12;

// target, source: rounds x (threads of the grid) units of 16 bytes, which may be another GPU's or the host's
// memory. All of it is copied `copies` times.
__global__ void copy_streaming(uint4* target, const uint4* source, unsigned long long rounds, unsigned copies) {
    const unsigned long long threads = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    const unsigned long long first = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (unsigned copy = 0; copy < copies; ++copy) {
        const uint4* from = source + first;
        uint4* to = target + first;
        unsigned long long left = rounds;
        for (; left >= DEPTH; left -= DEPTH) {
            uint4 held[DEPTH];
#pragma unroll
            for (int i = 0; i < DEPTH; ++i, from += threads) held[i] = *from;
#pragma unroll
            for (int i = 0; i < DEPTH; ++i, to += threads) *to = held[i];
        }
        for (; left > 0; --left, from += threads, to += threads) *to = *from;
    }
}
