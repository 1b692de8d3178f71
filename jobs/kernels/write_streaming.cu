// Writing alone: a grid that just fills the GPU writes one unit of 16 bytes per thread all over the memory.
//
// Limited by the memory: stores wait for nothing, and consecutive threads write consecutive units.

// target: rounds x (threads of the grid) units of 16 bytes, written `copies` times. source: the unit of each
// thread, which it reads once.
__global__ void write_streaming(uint4* target, const uint4* source, unsigned long long rounds, unsigned copies) {
    const unsigned long long threads = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    const unsigned long long first = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const uint4 unit = source[first];
    for (unsigned copy = 0; copy < copies; ++copy) {
        uint4* to = target + first;
        for (unsigned long long left = rounds; left > 0; --left, to += threads) __stcg(to, unit);
    }
}
