// Enough of CUDA C++ to run kernels whose threads exchange values on the host: the threads of a block are
// coroutines, which give way to each other where they wait. One warp runs as far as it can before another does,
// the first one first and the last one first in turns, so that a barrier too few changes the results.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
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
struct Thread {
    ucontext_t start;  // with a stack of its own
    jmp_buf here;      // where it goes on; without a system call
    bool begun;
};
static jmp_buf scheduler;
static std::vector<Thread> threads;
static std::vector<Barrier> warps;
static Barrier block;
static std::vector<long> seen;  // how often the block's barrier was passed when a thread began to wait at it
static std::vector<unsigned> arrived;  // how often it had been passed when a thread arrived
static std::vector<char> memory;
static char lanes[2][1024][16];  // in turn: a thread is at most one exchange ahead of another
static std::vector<unsigned char> turns;

inline void wait(Barrier& at) {
    const unsigned before = at.passed;
    if (++at.waiting == at.size) {
        at.waiting = 0;
        ++at.passed;
    }
    if (&at == &block) seen[threadIdx.x] = before;
    while (at.passed == before)
        if (!_setjmp(threads[threadIdx.x].here)) _longjmp(scheduler, 1);
}
// The block's barrier in two halves.
inline void arrive() {
    arrived[threadIdx.x] = block.passed;
    if (++block.waiting == block.size) {
        block.waiting = 0;
        ++block.passed;
    }
}
inline void await() {
    const unsigned before = arrived[threadIdx.x];
    seen[threadIdx.x] = before;
    while (block.passed == before)
        if (!_setjmp(threads[threadIdx.x].here)) _longjmp(scheduler, 1);
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

static void launch(void (*kernel)(), const unsigned* grid, unsigned count, unsigned bytes) {
    constexpr std::size_t stack = 1 << 17;
    static const std::unique_ptr<char[]> stacks(new char[stack * 1024]);
    static void (*call)();
    static bool ended, any, runs;
    static unsigned i, pass, turn, first;
    static std::vector<bool> running;
    memory.assign(bytes + 16, 0);
    call = kernel;
    for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x) {
        running.assign(count, true);
        threads.assign(count, Thread{});
        warps.assign(count / 32, Barrier{32});
        block = Barrier{count};
        turns.assign(count, 0);
        seen.assign(count, -1);
        arrived.assign(count, 0);
        for (i = 0; i < count; ++i) {
            getcontext(&threads[i].start);
            threads[i].start.uc_stack.ss_sp = &stacks[stack * i];
            threads[i].start.uc_stack.ss_size = stack;
            makecontext(&threads[i].start, +[] { call(); ended = true; _longjmp(scheduler, 1); }, 0);
        }
        for (any = true, pass = 0; any; ++pass) {
            any = false;
            for (turn = 0; turn < count / 32; ++turn) {
                first = 32 * (pass % 2 ? count / 32 - 1 - turn : turn);
                for (runs = true; runs;) {
                    runs = false;
                    for (i = first; i < first + 32; ++i) {
                        if (!running[i] || seen[i] == long(block.passed)) continue;
                        threadIdx.x = i;
                        ended = false;
                        if (!_setjmp(scheduler)) {
                            if (threads[i].begun) _longjmp(threads[i].here, 1);
                            threads[i].begun = true;
                            setcontext(&threads[i].start);
                        }
                        running[i] = !ended;
                        runs = any = true;
                    }
                }
            }
        }
    }
}

#ifndef COPIES_ARE_LATE  // as in blocks.h
inline void copy_later(void* to, const void* from, int bytes) { std::memcpy(to, from, bytes); }
inline void commit_copies() {}
inline void wait_for_copies(unsigned) {}
#endif

}  // namespace emulated

inline void __syncwarp() { emulated::wait(emulated::warps[threadIdx.x / 32]); }
inline void __syncthreads() { emulated::wait(emulated::block); }
