// Enough of CUDA C++ to run the kernels on the host, thread by thread, under any C++17 compiler:
// what a GPU computes in parallel is computed here one after the other, with the same arithmetic.
// Takes the place of CUDA's own header of this name.

#pragma once

#include <math.h>
#include <string.h>
#include <ucontext.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#define __global__ static
#define __device__
#define __forceinline__ inline
#define __shared__ static

typedef _Float16 __half;
inline float __half2float(__half value) { return static_cast<float>(value); }
inline __half __float2half_rn(float value) { return static_cast<__half>(value); }
inline __half __double2half(double value) { return static_cast<__half>(value); }
template <typename T> void __stcs(T* target, T value) { *target = value; }
template <typename T> void atomicAdd(T* target, T value) { *target += value; }
template <typename T> void atomicMax(T* target, T value) { *target = *target < value ? value : *target; }
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline int __clzll(long long value) { return value ? __builtin_clzll(value) : 64; }

struct Index {
    unsigned x;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

// A block's threads as coroutines: __syncthreads() gives way to the next one.
static ucontext_t scheduler;
static std::vector<ucontext_t> threads;
inline void __syncthreads() { swapcontext(&threads[threadIdx.x], &scheduler); }

template <typename... P> struct Launch {
    static void (*kernel)(P...);
    static void** arguments;

    template <std::size_t... I> static void call(std::index_sequence<I...>) {
        kernel(*static_cast<P*>(arguments[I])...);
    }
    static void thread() { call(std::index_sequence_for<P...>()); }

    static void serial() {
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) thread();
    }

    static void cooperative() {
        constexpr std::size_t stack = 1 << 16, largest = 1024;
        static const std::unique_ptr<char[]> stacks(new char[stack * largest]);  // for all blocks, untouched
        std::vector<bool> waiting(blockDim.x, true);
        static bool ended;
        threads.resize(blockDim.x);
        for (unsigned i = 0; i < blockDim.x; ++i) {
            getcontext(&threads[i]);
            threads[i].uc_stack.ss_sp = &stacks[stack * i];
            threads[i].uc_stack.ss_size = stack;
            threads[i].uc_link = &scheduler;
            makecontext(&threads[i], +[] { thread(); ended = true; }, 0);
        }
        for (bool any = true; any;) {
            any = false;
            for (unsigned i = 0; i < blockDim.x; ++i) {
                if (!waiting[i]) continue;
                threadIdx.x = i;
                ended = false;
                swapcontext(&scheduler, &threads[i]);
                waiting[i] = !ended;
                any |= !ended;
            }
        }
    }
};
template <typename... P> void (*Launch<P...>::kernel)(P...);
template <typename... P> void** Launch<P...>::arguments;

template <typename... P>
void launch(void (*kernel)(P...), unsigned grid, unsigned block, void** arguments, bool synchronizes) {
    Launch<P...>::kernel = kernel;
    Launch<P...>::arguments = arguments;
    gridDim.x = grid;
    blockDim.x = block;
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
        synchronizes ? Launch<P...>::cooperative() : Launch<P...>::serial();
    }
}
