// x -> multiplier * x + increment modulo 2^32, `rounds` times, in place: as much arithmetic as one likes.
//
// Limited by integer multiply-adds from a few dozen rounds on, by memory below. One multiply-add waits for
// the one before it; the other warps of the processor fill that time. The result of all rounds has a closed
// form, so that a host can check it at once; the compiler does not know the number of rounds.

typedef unsigned long long u64;

__global__ void affine(unsigned* __restrict__ words, u64 count, unsigned multiplier, unsigned increment,
                       unsigned rounds) {
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        unsigned x = words[i];
        for (unsigned round = 0; round < rounds; ++round) x = multiplier * x + increment;
        words[i] = x;
    }
}
