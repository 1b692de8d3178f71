// A copy by a kernel, between any two memories that a GPU reaches: its own, the host's where it is, and
// managed pages, which move to the GPU as they are touched.
//
// Limited by the slower of the two memories and the link to it; for managed pages that are elsewhere by
// page faults, which a few thousand threads wait for at once. 16 bytes a load: fewer requests on the link.

typedef unsigned long long u64;

// source, target: aligned to 16 bytes. At least 16 threads.
__global__ void touch(const unsigned char* __restrict__ source, unsigned char* __restrict__ target, u64 nbytes) {
    const uint4* from = reinterpret_cast<const uint4*>(source);
    uint4* to = reinterpret_cast<uint4*>(target);
    const u64 whole = nbytes / sizeof(uint4), step = static_cast<u64>(gridDim.x) * blockDim.x;
    const u64 first = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (u64 i = first; i < whole; i += step) to[i] = from[i];
    const u64 last = whole * sizeof(uint4) + first;
    if (last < nbytes) target[last] = source[last];
}
