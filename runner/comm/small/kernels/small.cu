// Collectives of a few KiB by the GPUs' own stores: each rank stores its cells into the memory of every other rank.
//
// Limited by latency: one launch, one store over the link, one poll. slots.cuh says how ranks wait for each other.

#include "slots.cuh"

// Reduce `count` cells in place. The ranks' cells are combined in rank order, so that all ranks get the same bits.
template <typename T, typename Operation, int SIZE>
__global__ void __launch_bounds__(PAIRS) all_reduce(Members members, T* array, i64 count) {
    const u64 number = members.numbers[blockIdx.x] + 1;
    const i64 end = end_of_block(number, (count * i64(sizeof(T)) + 7) / 8);
    bool complete = true;
    for (i64 pair = i64(blockIdx.x) * PAIRS + threadIdx.x; pair < end && complete; pair += blockDim.x) {
        const Cells<T> own = load_cells(array, pair, count);
#pragma unroll
        for (int peer = 0; peer < SIZE; ++peer) {
            if (peer != members.rank) send(members, peer, SIZE, number, pair, own);
        }
        Cells<T> cells[SIZE];
        complete = receive<T, SIZE>(members, number, pair, cells);
#pragma unroll
        for (int peer = 0; peer < SIZE; ++peer) {
            if (peer == members.rank) cells[peer] = own;
        }
        Cells<T> total = cells[0];
#pragma unroll
        for (int peer = 1; peer < SIZE; ++peer) {
#pragma unroll
            for (int i = 0; i < int(8 / sizeof(T)); ++i) {
                total.cells[i] = combine(Operation(), total.cells[i], cells[peer].cells[i]);
            }
        }
        if (complete) store_cells(array, pair, count, total);
    }
    __syncthreads();  // all threads have read the number
    if (threadIdx.x == 0) members.numbers[blockIdx.x] = number;
}

// Send `count` cells of `source` to each rank, and store those of rank r as part r of `target`.
template <typename T, int SIZE>
__global__ void __launch_bounds__(PAIRS) all_to_all(Members members, const T* source, T* target, i64 count) {
    const u64 number = members.numbers[blockIdx.x] + 1;
    const i64 end = end_of_block(number, (count * i64(sizeof(T)) + 7) / 8);
    bool complete = true;
    for (i64 pair = i64(blockIdx.x) * PAIRS + threadIdx.x; pair < end && complete; pair += blockDim.x) {
        Cells<T> cells[SIZE];
#pragma unroll
        for (int peer = 0; peer < SIZE; ++peer) {
            const Cells<T> own = load_cells(source + peer * count, pair, count);
            if (peer == members.rank) store_cells(target + peer * count, pair, count, own);
            else send(members, peer, SIZE, number, pair, own);
        }
        complete = receive<T, SIZE>(members, number, pair, cells);
#pragma unroll
        for (int peer = 0; peer < SIZE; ++peer) {
            if (peer != members.rank && complete) store_cells(target + peer * count, pair, count, cells[peer]);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) members.numbers[blockIdx.x] = number;
}
