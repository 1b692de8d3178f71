// Enough of CUDA C++ to run a generated kernel on the host, thread by thread, under any C++17 compiler.
#pragma once

#include <cmath>
#include <cstddef>
#include <utility>

#define __global__ static
#define __device__
#define __launch_bounds__(...)
#define __restrict__

struct Index {
    unsigned x, y, z;
};
static Index threadIdx, blockIdx, blockDim;

template <typename T> inline T __ldg(const T* from) { return *from; }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (by & 31));
}

template <typename... P, std::size_t... I>
void call(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<P*>(arguments[I])...);
}

// Run all threads of a one-dimensional grid of two-dimensional blocks, one after the other.
template <typename... P> void launch(void (*kernel)(P...), unsigned grid, unsigned x, unsigned y, void** arguments) {
    blockDim = {x, y, 1};
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x)
        for (threadIdx.y = 0; threadIdx.y < y; ++threadIdx.y)
            for (threadIdx.x = 0; threadIdx.x < x; ++threadIdx.x)
                call(kernel, arguments, std::index_sequence_for<P...>());
}
