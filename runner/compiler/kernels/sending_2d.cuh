// Steps of an array whose rows are split between GPUs of one host: the kernel itself stores the rows that the rank
// before and the one after need into their halos, and waits for theirs.
//
// A strip within `near_rows` rows of a neighbour takes part: it waits until all such strips of the neighbour have ended
// its kernel before this one, computes, and stores. runner/arrays/halo/direct.py shows why that suffices. All other
// strips wait for nobody: neighbours are a kernel apart at most, and the wait is over when the kernel begins, unless
// the neighbour is late.
#pragma once

namespace steps {

constexpr u64 EXCHANGE = 1ull << 32;
constexpr int TOGETHER = 4;  // rows that are under way to a neighbour

// Read what `store` has written.
template <typename T>
INLINE void load_own(T (&row)[C], const T* cell, int64 pitch, int stride, const Place& at, int x0) {
    const T* line = cell + at.row * pitch;
    const int inner = at.column - x0;
    const bool within = inner >= MARGIN && inner + C <= TILE - MARGIN && at.column + C <= at.all.x.own;
    if (VECTOR > 1 && stride == 1 && within) {
        read(row, line + at.column);
        return;
    }
    UNROLL for (int c = 0; c < C; ++c) {
        const int column = at.column + c, place = column - x0;
        const bool own = place >= MARGIN && place < TILE - MARGIN && column >= 0 && column < at.all.x.own;
        row[c] = own ? line[int64(column) * stride] : T(0);
    }
}

// Copy a tile's own columns of the rows from `first` to before `last` to another rank's block, whose row 0 here
// would be at `to`.
template <typename T>
INLINE void send(const T* cell, T* to, int64 pitch, int stride, const Arguments& all, int x0, int first, int last) {
    const int column = x0 + int(threadIdx.x % LANES) * C;
    NO_UNROLL for (int row = first; row < last; row += TOGETHER) {
        T rows[TOGETHER][C];
        UNROLL for (int r = 0; r < TOGETHER; ++r)
            if (row + r < last) load_own(rows[r], cell, pitch, stride, Place{all, column, row + r}, x0);
        UNROLL for (int r = 0; r < TOGETHER; ++r)
            if (row + r < last) store(rows[r], to, pitch, stride, Place{all, column, row + r}, x0);
    }
}

// Whether a strip takes part in the exchange with the rank before, or with the one after.
struct Near {
    bool before, after;
};
INLINE Near near_of(const Arguments& all, int first, int last) {
    return {all.before_rank >= 0 && first < all.near_rows, all.after_rank >= 0 && last > all.y.own - all.near_rows};
}

// Wait for the strips of a neighbour's kernel before this one. count: what has arrived when this strip began.
INLINE bool await_rank(const Arguments& all, int side, int rank, u64 count, u64 number) {
    if (count >= number * EXCHANGE) return true;
    const bool arrived = wait_for(all.arrived + side, number * EXCHANGE, all.patience, all.state);
    if (!arrived) fail(all.state, all.failure, rank);
    return arrived;
}

// Wait until the halos that a strip reads are complete, and those that it will store are read.
INLINE bool await_neighbours(const Arguments& all, const Near& near) {
    bool ready = true;
    if (threadIdx.x % LANES == 0) {
        // All under way at once. What follows a failure is of no use.
        const State state = *all.state;
        const u64 before = near.before ? load_acquire(all.arrived) : 0;
        const u64 after = near.after ? load_acquire(all.arrived + 1) : 0;
        ready = !state.failed;
        if (ready && near.before) ready = await_rank(all, 0, all.before_rank, before, state.sequence);
        if (ready && near.after) ready = await_rank(all, 1, all.after_rank, after, state.sequence);
    }
    __syncwarp();
    return !in_any_lane(!ready);
}

INLINE void run_and_send(const Arguments& all) {
    int tile, first, last;
    if (!find_strip(all, tile, first, last)) return;
    Near near = near_of(all, first, last);
    if ((near.before || near.after) && !await_neighbours(all, near)) return;
    strip(all, first_column(all, tile), first, last, shared_memory());
    find_strip(all, tile, first, last);  // again, rather than in registers all the while
    near = near_of(all, first, last);
    if (!near.before && !near.after) return;
    const int x0 = first_column(all, tile), own = all.y.own;
    __syncwarp();  // other lanes have stored what this one reads
#define X(n, T, constant)                                                                                     \
    if (near.before)                                                                                          \
        send(all.out##n, all.before##n, all.out_pitch##n, STRIDE##n, all, x0, first, least(last, int(all.before_rows##n))); \
    if (near.after)                                                                                           \
        send(all.out##n, all.after##n, all.out_pitch##n, STRIDE##n, all, x0, most(first, own - int(all.after_rows##n)), last);
    PLANES(X)
#undef X
    __syncwarp();
    if (threadIdx.x % LANES != 0) return;
    // The shares of a side are EXCHANGE in all.
    if (near.before) add_release(all.before_count, tile == 0 && first == 0 ? EXCHANGE - (all.before_strips - 1) : 1);
    if (near.after) add_release(all.after_count, tile == 0 && last == own ? EXCHANGE - (all.after_strips - 1) : 1);
    const u64 number = all.state->sequence;
    if (atomicAdd(&all.state->blocks, u64(1)) + 1 == u64(all.strips_near)) {
        all.state->blocks = 0;
        all.state->sequence = number + 1;
    }
}

}  // namespace steps
