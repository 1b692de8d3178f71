// Enough of CUDA C++ to run kernels/halo.cu on the host: a block is one thread, blocks follow each other, and
// each rank is a thread of the process. Only the order of stores and flags between ranks is concurrent.

#pragma once

#include <atomic>
#include <ctime>

#define __global__
#define __device__ static inline
#define __shared__ static thread_local

struct Index {
    unsigned x;
};
static thread_local Index threadIdx, blockIdx, blockDim, gridDim;

inline void __syncthreads() {}
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline unsigned long long atomicAdd(unsigned long long* cell, unsigned long long value) {
    return __atomic_fetch_add(cell, value, __ATOMIC_RELAXED);
}
inline unsigned long long atomicCAS(unsigned long long* cell, unsigned long long old, unsigned long long value) {
    __atomic_compare_exchange_n(cell, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return old;
}
inline unsigned long long load_acquire(const unsigned long long* flag) {
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}
inline void store_release(unsigned long long* flag, unsigned long long value) {
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}
inline unsigned long long nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}
