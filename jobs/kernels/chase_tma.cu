// The latency of a bulk copy by the tensor memory accelerator: each address is what the copy before it brought.
//
// Limited by the way from one multiprocessor to the memory and back, and by the barrier in shared memory that
// says when the bytes are there: one copy of 16 bytes is under way on the whole GPU.

// As `chase`. From Hopper on.
__global__ void chase_tma(const unsigned long long* first, unsigned steps, unsigned block, unsigned long long* last) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (blockIdx.x != block) return;
    __shared__ alignas(16) unsigned long long held[2];
    __shared__ alignas(8) unsigned long long arrived;
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(held));
    const unsigned barrier = static_cast<unsigned>(__cvta_generic_to_shared(&arrived));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    unsigned long long at = reinterpret_cast<unsigned long long>(first);
    for (unsigned step = 0; step < steps; ++step) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16;" ::"r"(barrier) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];" ::"r"(to),
                     "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(at))), "r"(barrier)
                     : "memory");
        unsigned done = 0;
        while (!done) {
            asm volatile(
                "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                : "=r"(done) : "r"(barrier), "r"(step & 1) : "memory");
        }
        at = *const_cast<volatile unsigned long long*>(held);
        // The next copy writes there by another path, and must not overtake this load.
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    last[block] = at;
#endif
}
