// A copy of few bytes: a thread for every 16 of them, so that no size has to be a multiple of the grid.
//
// Limited by latency: a thread has one load under way, and repeats it for each of the copies. Loads and stores
// go past the L1 (`cg`), which would otherwise hold what the thread read in the copy before.

// target, source: `units` of 16 bytes, copied `copies` times.
__global__ void copy_small(uint4* target, const uint4* source, unsigned long long units, unsigned copies) {
    const unsigned long long at = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= units) return;
    for (unsigned copy = 0; copy < copies; ++copy) __stcg(target + at, __ldcg(source + at));
}
