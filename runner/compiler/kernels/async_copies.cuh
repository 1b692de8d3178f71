// Copies from global to shared memory that go on beside a thread's work, in groups; for CUDA (NVRTC), and for a host
// that runs the threads of a block in turns.
#pragma once

// Begin to copy BYTES bytes.
template <int BYTES> INLINE void copy_async(void* to, const void* from) {
#ifdef __CUDACC_RTC__
    const uint32 address = static_cast<uint32>(__cvta_generic_to_shared(to));
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(BYTES) : "memory");
#else
    emulated::copy_later(to, from, BYTES);
#endif
}

// End a group of copies.
INLINE void commit_copies() {
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    emulated::commit_copies();
#endif
}

// Wait for this thread's copies, but for those of the NEWEST groups.
template <int NEWEST> INLINE void await_copies() {
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.wait_group %0;" ::"n"(NEWEST) : "memory");
#else
    emulated::wait_for_copies(NEWEST);
#endif
}
