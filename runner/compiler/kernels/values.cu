// Values from values, and from the keys of reductions, by one thread. runner/compiler/cuda/values.py writes what
// the @marks@ stand for. A launch of it costs a microsecond or two; the host would wait for the device.

// @headers@

__global__ void values(uint64* slots, uint64* keys) {
    // @body@
}
