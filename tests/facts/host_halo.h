// Enough of CUDA C++ to run kernels/halo.cu on the host: blocks follow each other, and each rank is a thread of
// the process. A block is that thread, or THREADS threads, which share this library's static variables: then each
// rank has a copy of the library.

#pragma once

#include <sched.h>

#include <atomic>
#include <barrier>
#include <ctime>
#include <thread>
#include <vector>

#define __global__
#define __device__ static inline
#if THREADS > 1
#define __shared__ static
#else
#define __shared__ static thread_local
#endif

struct Index {
    unsigned x;
};
static thread_local Index threadIdx, blockIdx, blockDim, gridDim;

#if THREADS > 1
static std::barrier<> block_barrier(THREADS);
inline void __syncthreads() { block_barrier.arrive_and_wait(); }
#else
inline void __syncthreads() {}
#endif

// Run a grid's blocks one after the other.
template <typename Kernel> void run_grid(unsigned grid, Kernel kernel) {
    auto blocks = [&](unsigned thread) {
        gridDim.x = grid, blockDim.x = THREADS, threadIdx.x = thread;
        for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
            kernel();
            __syncthreads();
        }
    };
    std::vector<std::thread> others;
    for (unsigned thread = 1; thread < THREADS; ++thread) others.emplace_back(blocks, thread);
    blocks(0);
    for (auto& other : others) other.join();
}

inline unsigned long long atomicAdd(unsigned long long* cell, unsigned long long value) {
    return __atomic_fetch_add(cell, value, __ATOMIC_RELAXED);
}
inline unsigned long long atomicCAS(unsigned long long* cell, unsigned long long old, unsigned long long value) {
    __atomic_compare_exchange_n(cell, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return old;
}
inline unsigned long long load_acquire(const unsigned long long* flag) {
    sched_yield();  // there may be fewer processors than threads
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}
inline void store_release(unsigned long long* flag, unsigned long long value) {
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}
inline void store_relaxed(unsigned long long* flag, unsigned long long value) {
    __atomic_store_n(flag, value, __ATOMIC_RELAXED);
}
inline void add_release(unsigned long long* count, unsigned long long value) {
    __atomic_fetch_add(count, value, __ATOMIC_RELEASE);
}
inline unsigned long long nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}
