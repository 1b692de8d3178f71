// Values from values, and from the keys and sums of reductions. runner/compiler/cuda/values.py writes what the
// @marks@ stand for. One thread computes them; all threads of the block add the copies of sums, and exchange what
// several ranks have, through slots (comm/small/kernels/slots.cuh). A launch of it costs a microsecond or two; the host
// would wait for the device.

// @headers@

__global__ void values(uint64* slots, uint64* keys, uint64* sums, uint64* totals
                       // @members@
) {
    const bool first = threadIdx.x == 0;
#ifdef __CUDACC_RTC__
    __shared__ uint64 total[numpy::SUM_WORDS];
#else
    static uint64 total[numpy::SUM_WORDS];
#endif
    // @body@
}
