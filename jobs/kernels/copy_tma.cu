// A copy by the tensor memory accelerator: bulk copies from global to shared memory and back, from Hopper on.
//
// Limited by the memory or by the link between source and target. One thread of a block issues all copies and
// no register holds data. A block has three tiles under way while it stores a fourth, 24 KiB; four blocks on a
// multiprocessor make 96 KiB, as much as the threads of copy_streaming hold.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

constexpr unsigned STAGES = 4, TILE = 8192;

__device__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Returns when the barrier has completed the phase of this parity.
__device__ void wait(unsigned barrier, unsigned parity) {
    unsigned done = 0;
    while (!done) {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    }
}

#endif

// target, source: `bytes` bytes, a multiple of 16, copied `copies` times; addresses are multiples of 16. The
// first thread of each block works.
__global__ void copy_tma(char* target, const char* source, unsigned long long bytes, unsigned copies) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ alignas(128) char held[STAGES][TILE];
    __shared__ alignas(8) unsigned long long arrived[STAGES];
    const unsigned long long tiles = (bytes + TILE - 1) / TILE;
    if (threadIdx.x != 0 || blockIdx.x >= tiles) return;
    for (unsigned stage = 0; stage < STAGES; ++stage)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&arrived[stage])) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");

    // This block's tiles, one copy after another: number k is in stage k % STAGES.
    const unsigned long long mine = (tiles - 1 - blockIdx.x) / gridDim.x + 1, count = mine * copies;
    const auto begin = [&](unsigned long long k) { return (k % mine * gridDim.x + blockIdx.x) * TILE; };
    const auto size = [&](unsigned long long at) {
        return static_cast<unsigned>(bytes - at < TILE ? bytes - at : TILE);
    };
    const auto load = [&](unsigned long long k) {
        const unsigned stage = k % STAGES, barrier = shared_address(&arrived[stage]), nbytes = size(begin(k));
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(nbytes) : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                shared_address(held[stage])),
            "l"(__cvta_generic_to_global(source + begin(k))), "r"(nbytes), "r"(barrier)
            : "memory");
    };
    for (unsigned long long k = 0; k < count && k < STAGES - 1; ++k) load(k);
    for (unsigned long long k = 0; k < count; ++k) {
        const unsigned stage = k % STAGES;
        wait(shared_address(&arrived[stage]), k / STAGES & 1);
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                         __cvta_generic_to_global(target + begin(k))),
                     "r"(shared_address(held[stage])), "r"(size(begin(k)))
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        if (k + STAGES - 1 < count) {
            // The next load overwrites the tile that was stored before this one.
            asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
            load(k + STAGES - 1);
        }
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}
