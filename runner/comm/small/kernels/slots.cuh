// Slots in which GPUs of one host store a few KiB for each other, and how they are numbered and waited for.
//
// Limited by latency: one launch, one store over the link, one poll. Data and flag are one 8-byte word, so that a
// reader needs no fence, and half of what crosses the link is flags: above some hundred KiB, NCCL is faster.
//
// Each rank has slots for two operations in turn: slots[number % 2][sender][pair]. A slot is two words, each with
// 4 bytes of data and, as its flag, the lower 32 bits of the operation's number. Block b handles pairs b * PAIRS to
// (b + 1) * PAIRS - 1 of every operation that has such pairs, and counts these operations, from 1, in numbers[b], in
// device memory, so that a CUDA graph of operations can be launched repeatedly. All ranks take part in the same
// operations, each in one stream, so that their counts agree.
//
// Write after read: rank r stores operation n of block b after its operation n - 1 has ended, in which it received a
// word of n - 1 from every rank p. So p had started n - 1, after its operation n - 2, which read the same slots.
// Stale flags: flags repeat after 2^32 operations. The first two of each REFRESH operations of a block store all of
// its slots, so that no flag is older than that.
//
// A block waits only for blocks of its own number, which store before they wait: the ranks' blocks may run in any
// order as long as a whole grid fits a GPU. A wait ends after `patience` nanoseconds. The kernel notes the sender in
// `failure`, a word of host memory, and ends the rank's CUDA context, so that nobody reads an incomplete result.
#pragma once

#include "flags.cuh"

typedef long long i64;

constexpr int MOST = 8, PAIRS = 512;  // ranks; pairs of words of a block
#ifndef REFRESH
#define REFRESH (1ull << 30)
#endif

struct Slot {
    unsigned low, low_flag, high, high_flag;
};

#ifdef __CUDACC__
__device__ void store_slot(Slot* slot, const Slot& value) {
    const u64 low = value.low | u64(value.low_flag) << 32, high = value.high | u64(value.high_flag) << 32;
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(slot), "l"(low), "l"(high) : "memory");
}
__device__ Slot load_slot(const Slot* slot) {
    u64 low, high;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(slot) : "memory");
    return {unsigned(low), unsigned(low >> 32), unsigned(high), unsigned(high >> 32)};
}
__device__ void end_context() {
    __threadfence_system();
    asm volatile("trap;");
}
#endif

// What is the same in all launches. slots: address of each rank's slots; own: of this rank's, again, so that no index
// is computed. capacity: most pairs of an operation. numbers: of this rank's blocks. patience: nanoseconds.
struct Members {
    u64 slots[MOST], own;
    i64 rank, capacity;
    State* state;
    u64 *numbers, *failure, patience;
};

// 8 bytes of cells; those beyond the end are 0.
template <typename T> union Cells {
    T cells[8 / sizeof(T)];
    unsigned words[2];
};
template <typename T> __device__ Cells<T> load_cells(const T* array, i64 pair, i64 count) {
    constexpr i64 EACH = 8 / sizeof(T);
    Cells<T> found;
    found.words[0] = found.words[1] = 0;
#pragma unroll
    for (i64 i = 0; i < EACH; ++i) {
        if (pair * EACH + i < count) found.cells[i] = array[pair * EACH + i];
    }
    return found;
}
template <typename T> __device__ void store_cells(T* array, i64 pair, i64 count, const Cells<T>& value) {
    constexpr i64 EACH = 8 / sizeof(T);
#pragma unroll
    for (i64 i = 0; i < EACH; ++i) {
        if (pair * EACH + i < count) array[pair * EACH + i] = value.cells[i];
    }
}

__device__ Slot* slot_of(const Members& members, u64 slots, i64 sender, int size, u64 number, i64 pair) {
    return reinterpret_cast<Slot*>(slots) + (i64(number % 2) * size + sender) * members.capacity + pair;
}

template <typename T>
__device__ void send(const Members& members, int peer, int size, u64 number, i64 pair, const Cells<T>& cells) {
    const unsigned flag = unsigned(number);
    Slot* slot = slot_of(members, members.slots[peer], members.rank, size, number, pair);
    store_slot(slot, {cells.words[0], flag, cells.words[1], flag});
}

// Receive a pair of every other rank, into `cells` by sender; false if one has not come in time.
template <typename T, int SIZE>
__device__ bool receive(const Members& members, u64 number, i64 pair, Cells<T> (&cells)[SIZE]) {
    const unsigned flag = unsigned(number);
    u64 begin = 0;
    for (unsigned polls = 1;; ++polls) {
        int missing = -1;
#pragma unroll
        for (int peer = 0; peer < SIZE; ++peer) {
            if (peer == members.rank) continue;
            const Slot slot = load_slot(slot_of(members, members.own, peer, SIZE, number, pair));
            if (slot.low_flag != flag || slot.high_flag != flag) missing = peer;
            cells[peer].words[0] = slot.low, cells[peer].words[1] = slot.high;
        }
        if (missing < 0) return true;
        if (polls % 256) continue;
        const u64 now = nanoseconds();
        if (begin == 0) begin = now;
        if (now - begin > members.patience || load_acquire(&members.state->failed)) {
            if (atomicCAS(&members.state->failed, 0ull, u64(missing) + 1) == 0) {
                store_release(members.failure, u64(missing) + 1);
                end_context();
            }
            return false;
        }
    }
}

struct Sum {};
struct Max {};
struct Min {};
template <typename T> __device__ T combine(Sum, T a, T b) { return a + b; }
template <typename T> __device__ T combine(Max, T a, T b) { return a < b ? b : a; }
template <typename T> __device__ T combine(Min, T a, T b) { return b < a ? b : a; }

// The pairs of this block in an operation of `pairs` pairs: all that it has if their slots are refreshed.
__device__ i64 end_of_block(u64 number, i64 pairs) {
    const i64 end = (i64(blockIdx.x) + 1) * PAIRS;
    return number % REFRESH < 2 || pairs > end ? end : pairs;
}

// Add the ranks' words of `sums`, and take the largest of each of `best`: at most PAIRS words. By the only block of a
// kernel, whose threads have written them.
template <int SIZE> __device__ void reduce_words(const Members& members, u64* sums, i64 many, u64* best, i64 few) {
    __syncthreads();
    const u64 number = members.numbers[0] + 1;
    const i64 end = number % REFRESH < 2 ? PAIRS : many + few;
#ifdef __CUDACC__
    const i64 begin = threadIdx.x, step = blockDim.x;
#else  // where threads follow each other, the first one does all
    const i64 begin = threadIdx.x == 0 ? 0 : PAIRS, step = 1;
#endif
    for (i64 pair = begin; pair < end; pair += step) {
        const bool added = pair < many;
        u64* word = added ? sums + pair : best + (pair - many);
        Cells<u64> own, cells[SIZE];
        own.cells[0] = pair < many + few ? *word : 0;
#pragma unroll
        for (int peer = 0; peer < SIZE; ++peer) {
            if (peer != members.rank) send(members, peer, SIZE, number, pair, own);
        }
        if (!receive<u64, SIZE>(members, number, pair, cells)) return;
        u64 total = own.cells[0];
#pragma unroll
        for (int peer = 0; peer < SIZE; ++peer) {
            if (peer == members.rank) continue;
            const u64 theirs = cells[peer].cells[0];
            total = added ? total + theirs : theirs > total ? theirs : total;
        }
        if (pair < many + few) *word = total;
    }
    __syncthreads();
    if (threadIdx.x == 0) members.numbers[0] = number;
}
