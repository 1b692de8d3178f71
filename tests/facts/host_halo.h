// Enough of CUDA C++ to run kernels/halo.cu on the host: blocks follow each other, and each rank is a thread of
// the process. A block is that thread, or THREADS threads, which share this library's static variables: then each
// rank has a copy of the library.

#pragma once

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "host_flags.h"

#define __global__
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
