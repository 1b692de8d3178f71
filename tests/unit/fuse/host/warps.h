// Enough of CUDA C++ to run kernels whose threads exchange values on the host: the threads of a block are
// coroutines, which give way to each other where they wait.
#pragma once

#include <ucontext.h>

#include <cstring>
#include <memory>
#include <vector>

#define __global__
#define __launch_bounds__(...)
#define __shared__ static

struct Index {
    unsigned x, y, z;
};
static Index threadIdx, blockIdx;

namespace emulated {

struct Barrier {
    unsigned size, waiting = 0, passed = 0;
};
static ucontext_t scheduler;
static std::vector<ucontext_t> threads;
static std::vector<Barrier> warps;
static Barrier block;
static std::vector<char> memory;
static char lanes[2][1024][16];  // in turn: a thread is at most one exchange ahead of another
static std::vector<unsigned char> turns;

inline void wait(Barrier& at) {
    const unsigned before = at.passed;
    if (++at.waiting == at.size) {
        at.waiting = 0;
        ++at.passed;
    }
    while (at.passed == before) swapcontext(&threads[threadIdx.x], &scheduler);
}
template <typename T> T from_lane(T value, int lane) {
    const unsigned me = threadIdx.x, warp = me / 32;
    auto& buffer = lanes[turns[me] ^= 1];
    std::memcpy(buffer[me], &value, sizeof(T));
    wait(warps[warp]);
    std::memcpy(&value, buffer[warp * 32 + lane % 32], sizeof(T));
    return value;
}
inline char* shared() { return memory.data(); }

inline void launch(void (*kernel)(), const unsigned* grid, unsigned count, unsigned bytes) {
    constexpr std::size_t stack = 1 << 17;
    static const std::unique_ptr<char[]> stacks(new char[stack * 1024]);
    static void (*call)();
    static bool ended;
    memory.assign(bytes + 16, 0);
    threads.resize(count);
    for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x) {
        std::vector<bool> running(count, true);
        warps.assign(count / 32, Barrier{32});
        block = Barrier{count};
        turns.assign(count, 0);
        call = kernel;
        for (unsigned i = 0; i < count; ++i) {
            getcontext(&threads[i]);
            threads[i].uc_stack.ss_sp = &stacks[stack * i];
            threads[i].uc_stack.ss_size = stack;
            threads[i].uc_link = &scheduler;
            makecontext(&threads[i], +[] { call(); ended = true; }, 0);
        }
        for (bool any = true; any;) {
            any = false;
            for (unsigned i = 0; i < count; ++i) {
                if (!running[i]) continue;
                threadIdx.x = i;
                ended = false;
                swapcontext(&scheduler, &threads[i]);
                running[i] = !ended;
                any |= !ended;
            }
        }
    }
}

}  // namespace emulated

inline void __syncwarp() { emulated::wait(emulated::warps[threadIdx.x / 32]); }
inline void __syncthreads() { emulated::wait(emulated::block); }
