// Two memories copied into each other at the same time by one grid: of every 1024 bytes the odd 512 go one
// way, the even 512 the other, a warp's 32 threads of 16 bytes each.
//
// Limited by the link in both directions at once; half of the bytes travel each way. Loads and stores go past
// the L1 (`cg`). A thread repeats its 16 bytes for each of the copies.

// target, source: `units` of 16 bytes. Odd pieces are copied to target, even ones to source, `copies` times.
__global__ void copy_split(uint4* target, uint4* source, unsigned long long units, unsigned copies) {
    const unsigned long long at = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= units) return;
    const bool odd = at / 32 % 2;
    uint4* to = (odd ? target : source) + at;
    const uint4* from = (odd ? source : target) + at;
    for (unsigned copy = 0; copy < copies; ++copy) __stcg(to, __ldcg(from));
}
