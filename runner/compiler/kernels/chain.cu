// A chain of stages of few cells on a GPU: one block of threads computes all of them, and waits for its own
// threads between two. What limits it is the latency of a stage's reads, from the cache of one processor.
//
// words: the addresses and the numbers of all boxes, which each stage reads from shared memory.
@functions

extern "C" __global__ void __launch_bounds__(@threads) chain(const uint64* words, const uint64* scalars) {
    __shared__ uint64 arrays[@arrays];
    __shared__ int64 numbers[@numbers];
    for (int i = threadIdx.x; i < @arrays; i += @threads) arrays[i] = words[i];
    for (int i = threadIdx.x; i < @numbers; i += @threads) numbers[i] = words[@arrays + i];
@calls
}
