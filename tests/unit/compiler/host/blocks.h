// As cuda.h, and for kernels whose threads share memory, as warps.h. What a thread copies to shared memory without
// waiting is poison until the thread waits for it.
#pragma once

#define COPIES_ARE_LATE
#include "warps.h"

#include <deque>
#include <utility>

#define __device__
#define __restrict__

static Index blockDim;

template <typename T> inline T __ldg(const T* from) { return *from; }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (by & 31));
}

namespace emulated {

struct Copy {
    void* to;
    const void* from;
    int bytes;
};
static std::vector<std::deque<std::vector<Copy>>> groups;  // of each thread; the last one is open

inline void copy_later(void* to, const void* from, int bytes) {
    std::memset(to, 0xEE, bytes);
    groups[threadIdx.x].back().push_back({to, from, bytes});
}
inline void commit_copies() { groups[threadIdx.x].emplace_back(); }
inline void wait_for_copies(unsigned newest) {
    auto& mine = groups[threadIdx.x];
    for (; mine.size() > newest + 1; mine.pop_front())
        for (const Copy& one : mine.front()) std::memcpy(one.to, one.from, one.bytes);
}

static void (*body)();
static void (*invoke)(void**);
static void** given;
static void begin() {
    groups[threadIdx.x].assign(1, {});
    invoke(given);
}

}  // namespace emulated

template <typename... P, std::size_t... I>
void call(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<P*>(arguments[I])...);
}

// Run a one-dimensional grid of blocks of `count` threads. KERNEL: of the arguments that it takes.
template <auto KERNEL, typename... P> void run_with(void (*)(P...), unsigned grid, unsigned count, unsigned bytes) {
    const unsigned blocks[3] = {grid, 1, 1};
    blockDim = {count, 1, 1};
    emulated::groups.assign(count, {});
    emulated::invoke = [](void** arguments) { call(KERNEL, arguments, std::index_sequence_for<P...>()); };
    emulated::launch(emulated::begin, blocks, count, bytes);
}
template <auto KERNEL> void run_blocks(unsigned grid, unsigned count, unsigned bytes, void** arguments) {
    emulated::given = arguments;
    run_with<KERNEL>(KERNEL, grid, count, bytes);
}

// Run threads that share nothing, one after the other.
template <typename... P> void launch(void (*kernel)(P...), unsigned grid, unsigned x, unsigned y, void** arguments) {
    blockDim = {x, y, 1};
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x)
        for (threadIdx.y = 0; threadIdx.y < y; ++threadIdx.y)
            for (threadIdx.x = 0; threadIdx.x < x; ++threadIdx.x)
                call(kernel, arguments, std::index_sequence_for<P...>());
    threadIdx.y = 0;
}
