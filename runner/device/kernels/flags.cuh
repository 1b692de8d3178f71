// Flags and counts in memory that several GPUs of a host write: in order with other stores, and waits that end.
#pragma once

typedef unsigned long long u64;

#ifdef __CUDACC__
__device__ u64 load_acquire(const u64* flag) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
    return value;
}
__device__ void store_release(u64* flag, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
__device__ void store_relaxed(u64* flag, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
// All earlier stores of the block (the warp) are seen by who sees the sum, if __syncthreads (__syncwarp) is between.
__device__ void add_release(u64* count, u64 value) {
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(count), "l"(value) : "memory");
}
__device__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}
#endif

// sequence: of the exchanges done. blocks: of threads that have read it. failed: 1 + rank of a neighbour that
// was waited for in vain.
struct State {
    u64 sequence, blocks, failed;
};

// Wait until a flag of this rank's page has `number`; false if `patience` nanoseconds pass, or if another
// thread of this rank has waited in vain.
__device__ bool wait_for(const u64* flag, u64 number, u64 patience, const State* state) {
    u64 begin = 0;
    for (unsigned polls = 1; load_acquire(flag) < number; ++polls) {
        if (polls % 256) continue;
        const u64 now = nanoseconds();
        if (begin == 0) begin = now;
        if (now - begin > patience || load_acquire(&state->failed)) return false;
    }
    return true;
}

__device__ void fail(State* state, u64* failure, long long peer) {
    if (atomicCAS(&state->failed, 0ull, u64(peer) + 1) == 0) {
        store_release(failure, u64(peer) + 1);
    }
}
