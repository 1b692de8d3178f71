// Halo cells, copied by a GPU's own threads: within its memory, or into the memory of neighbouring ranks.
//
// Limited by the link between the GPUs, and for small faces by its latency: a store is sent off and nobody
// waits for it, but the fence after it takes the link's way there and back. One block of threads does one row of
// the table, so that all faces, fields and neighbours are under way at once; each block tells the neighbour of its
// own row, and waits for no other block.

#include "flags.cuh"

typedef long long i64;

constexpr int AXES = 6, DEPTH = 4;
constexpr u64 EXCHANGE = 1ull << 32;

// Part of a box of cells: units `first` to `last`, in C order. source, target: addresses of the box's first
// unit. unit: bytes, 1 to 16, a divisor of all addresses and steps. peer: rank of the neighbour whose memory
// `target` is, -1 for this rank's own. arrived: address of the neighbour's count of what arrived from this rank.
// mark: what this row adds to it; all rows of an exchange for one neighbour add EXCHANGE. from, to: bytes between
// two units along each axis, 0 to repeat one.
struct Row {
    u64 source, target;
    i64 unit, first, last, peer, axes;
    u64 arrived, mark;
    i64 count[AXES], from[AXES], to[AXES];
};
constexpr int WORDS = sizeof(Row) / sizeof(i64);

struct alignas(16) Wide {
    u64 low, high;
};

template <typename Unit> __device__ void copy_units(const Row& row) {
    for (i64 begin = row.first + threadIdx.x; begin < row.last; begin += DEPTH * i64(blockDim.x)) {
        Unit loaded[DEPTH];
        u64 targets[DEPTH];
#pragma unroll
        for (int j = 0; j < DEPTH; ++j) {
            const i64 number = begin + j * i64(blockDim.x);
            if (number >= row.last) break;
            unsigned left = unsigned(number);  // a box has fewer units than 2^31
            u64 source = row.source, target = row.target;
            for (int axis = int(row.axes) - 1; axis > 0; --axis) {
                const unsigned count = unsigned(row.count[axis]), place = left % count;
                left /= count;
                source += u64(row.from[axis] * i64(place));
                target += u64(row.to[axis] * i64(place));
            }
            loaded[j] = *reinterpret_cast<const Unit*>(source + u64(row.from[0] * i64(left)));
            targets[j] = target + u64(row.to[0] * i64(left));
        }
#pragma unroll
        for (int j = 0; j < DEPTH; ++j) {
            if (begin + j * i64(blockDim.x) < row.last) *reinterpret_cast<Unit*>(targets[j]) = loaded[j];
        }
    }
}

__device__ void copy_row(const Row& row) {
    switch (row.unit) {
        case 1: copy_units<unsigned char>(row); break;
        case 2: copy_units<unsigned short>(row); break;
        case 4: copy_units<unsigned>(row); break;
        case 8: copy_units<u64>(row); break;
        case 16: copy_units<Wide>(row); break;
    }
}

__device__ void load_row(Row& row, const i64* table) {
    auto* words = reinterpret_cast<i64*>(&row);
    for (int i = threadIdx.x; i < WORDS; i += blockDim.x) words[i] = table[i64(blockIdx.x) * WORDS + i];
    __syncthreads();
}

// Copy within this GPU's memory. A block for each row of the table.
__global__ void move_cells(const i64* table) {
    __shared__ Row row;
    load_row(row, table);
    copy_row(row);
}

// One exchange of all halos; a block for each row of the table, at least one.
//
// page: of this rank, where others write: `size` flags "ready", then `size` counts "arrived", each by sender.
// peers: ranks of the neighbours; pages: theirs. handshake: wait until a neighbour is ready before storing into
// its memory. failure: a word of host memory. The last block, which starts last, waits for the neighbours.
__global__ void exchange_halos(const i64* table, State* state, u64* page, const i64* peers,
                                          const u64* pages, i64 neighbours, i64 rank, i64 size,
                                          i64 handshake, u64 patience, u64* failure) {
    __shared__ Row row;
    __shared__ u64 number;
    __shared__ bool alive, ready;
    if (threadIdx.x == 0) number = state->sequence + 1, alive = !state->failed, ready = true;
    load_row(row, table);
    if (!alive) return;  // what follows a failure is of no use
    if (threadIdx.x == 0) atomicAdd(&state->blocks, u64(number > 0));  // once the sequence is read
    if (handshake) {
        // Kernels before this one have read all that they will: the flag orders no stores.
        if (blockIdx.x == 0) {
            for (i64 i = threadIdx.x; i < neighbours; i += blockDim.x) {
                store_relaxed(reinterpret_cast<u64*>(pages[i]) + rank, number);
            }
        }
        if (threadIdx.x == 0 && row.peer >= 0) {
            ready = wait_for(page + row.peer, number, patience, state);
            if (!ready) fail(state, failure, row.peer);
        }
        __syncthreads();
    }
    if (ready) copy_row(row);
    __syncthreads();
    if (threadIdx.x == 0 && ready && row.peer >= 0) add_release(reinterpret_cast<u64*>(row.arrived), row.mark);
    if (blockIdx.x + 1 < gridDim.x) return;
    for (i64 i = threadIdx.x; i < neighbours; i += blockDim.x) {
        if (!wait_for(page + size + peers[i], number * EXCHANGE, patience, state)) fail(state, failure, peers[i]);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        while (load_acquire(&state->blocks) < gridDim.x) {
        }
        state->blocks = 0;
        state->sequence = number;
    }
}
