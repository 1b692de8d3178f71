// The latency of a load: each address is what the load before it found.
//
// Limited by nothing but the way from one multiprocessor to the memory and back: one thread of the whole GPU
// has one load under way. Steps of 128 bytes are a cache line each, so no load finds its line already there.

// first: a chain of addresses in memory of this GPU, of another or of the host. The thread of block `block`
// follows it for `steps` loads, and leaves the address where that ended in last[block].
__global__ void chase(const unsigned long long* first, unsigned steps, unsigned block, unsigned long long* last) {
    if (blockIdx.x != block) return;
    const unsigned long long* at = first;
    for (unsigned step = 0; step < steps; ++step) at = reinterpret_cast<const unsigned long long*>(*at);
    last[block] = reinterpret_cast<unsigned long long>(at);
}
