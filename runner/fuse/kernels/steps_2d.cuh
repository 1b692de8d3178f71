// K time steps in one pass over two axes: a warp streams down the rows of a tile of 32 * C columns.
//
// A lane holds C columns of the last rows of each time level in registers, as rings of SLOTS rows; its
// neighbours along x are those of the next lanes. When row y of level 0 has come from memory, row y - k * RY
// of level k is computed, for all k. The outer MARGIN columns of a tile are of no use after K steps: they are
// another tile's columns. Rows are cut into strips, each of which starts K * RY rows earlier.
//
// Limited by instructions from K of about 5 on, before that by memory: each cell is read once and written
// once for K steps.
#pragma once

namespace steps {

constexpr int SLOTS = 2 * RY + 1;
constexpr int TILE = LANES * C;
constexpr int VALID = TILE - 2 * MARGIN;

struct Rows {  // the state: rows of each level
#define X(n, T, constant) T w##n[K][SLOTS][C];
    PLANES(X)
#undef X
};
struct Row {
#define X(n, T, constant) T w##n[C];
    PLANES(X)
#undef X
};

// Where a row is computed: of a tile whose lane has the columns from `column` on, in `row`.
struct Place {
    const Arguments& all;
    int column, row;
};

// The lane's columns of an input that no output feeds, dy rows away.
template <bool EDGE, typename T>
INLINE Lane<T> fixed(const T* cell, int64 pitch, int stride, const Place& at, int dy, T constant) {
    const Axis &rows = at.all.y, &columns = at.all.x;
    const int row = at.row + dy;
    Lane<T> found;
    if constexpr (EDGE) {
        const T* line = cell + rows.memory(row) * pitch;
        UNROLL for (int c = 0; c < C; ++c) {
            const int column = at.column + c;
            const bool beyond = BOUNDARY == CONSTANT && (rows.beyond(row) || columns.beyond(column));
            found.v[c] = beyond ? constant : line[int64(columns.memory(column)) * stride];
        }
    } else {
        const T* line = cell + rows.clamped(row) * pitch + int64(at.column) * stride;
        if constexpr (VECTOR > 1) read(found.v, line);
        else UNROLL for (int c = 0; c < C; ++c) found.v[c] = line[c * stride];
    }
    return found;
}

// Read a row of level 0. Inside the array and without vectors, a lane has every 32nd column.
template <bool EDGE, typename T>
INLINE void load(T (&into)[C], const T* cell, int64 pitch, int stride, const Place& at, int x0, T constant) {
    const Axis &rows = at.all.y, &columns = at.all.x;
    if constexpr (EDGE) {
        const bool outside = BOUNDARY == CONSTANT && rows.beyond(at.row);
        const T* row = cell + rows.memory(at.row) * pitch;
        UNROLL for (int c = 0; c < C; ++c) {
            const int column = at.column + c;
            into[c] = outside || (BOUNDARY == CONSTANT && columns.beyond(column))
                          ? constant
                          : row[int64(columns.memory(column)) * stride];
        }
    } else {
        const T* row = cell + rows.clamped(at.row) * pitch;
        if constexpr (VECTOR > 1) {
            read(into, row + at.column);
        } else {
            const T* first = row + int64(x0 + int(threadIdx.x % LANES)) * stride;
            UNROLL for (int c = 0; c < C; ++c) into[c] = first[c * LANES * stride];
        }
    }
}

// Exchange between every 32nd column of a lane and C columns side by side, through a row of shared memory.
template <typename T> INLINE void gather(T (&row)[C], char* memory) {
    T* shared = reinterpret_cast<T*>(memory);
    const int lane = threadIdx.x % LANES;
    UNROLL for (int c = 0; c < C; ++c) shared[c * LANES + lane] = row[c];
    __syncwarp();
    UNROLL for (int c = 0; c < C; ++c) row[c] = shared[lane * C + c];
    __syncwarp();
}
template <typename T> INLINE void spread(T (&row)[C], char* memory) {
    T* shared = reinterpret_cast<T*>(memory);
    const int lane = threadIdx.x % LANES;
    UNROLL for (int c = 0; c < C; ++c) shared[lane * C + c] = row[c];
    __syncwarp();
    UNROLL for (int c = 0; c < C; ++c) row[c] = shared[c * LANES + lane];
    __syncwarp();
}

template <bool EDGE, typename T>
INLINE void store(T (&row)[C], T* cell, int64 pitch, int stride, const Place& at, int x0, char* memory) {
    const int lane = threadIdx.x % LANES;
    T* line = cell + at.row * pitch;
    if constexpr (EDGE) {
        UNROLL for (int c = 0; c < C; ++c) {
            const int column = at.column + c, place = column - x0;
            if (place >= MARGIN && place < TILE - MARGIN && column >= 0 && column < at.all.x.own)
                line[int64(column) * stride] = row[c];
        }
    } else if constexpr (VECTOR > 1) {
        UNROLL for (int v = 0; v < C / VECTOR; ++v) {
            const int place = lane * C + v * VECTOR;
            if (place >= MARGIN && place < TILE - MARGIN) write(line + at.column, row, v);
        }
    } else {
        spread(row, memory);
        T* first = line + int64(x0 + lane) * stride;
        UNROLL for (int c = 0; c < C; ++c) {
            const int place = c * LANES + lane;
            if (place >= MARGIN && place < TILE - MARGIN) first[c * LANES * stride] = row[c];
        }
    }
}

template <bool EDGE, int LEVEL>
INLINE void compute(const Rows& rows, int here, const Place& at, Row& out);  // the generated text

// Put a new row into a ring: in its slot, or after the others, which move up.
template <bool EDGE, typename T> INLINE void push(T (&ring)[SLOTS][C], const T (&row)[C], int slot) {
    UNROLL for (int c = 0; c < C; ++c) {
        if constexpr (EDGE) {
            UNROLL for (int s = 1; s < SLOTS; ++s) ring[s - 1][c] = ring[s][c];
            ring[SLOTS - 1][c] = row[c];
        } else ring[slot][c] = row[c];
    }
}

// Compute a row of each level. A ring holds row y in slot y % SLOTS, counted from where the loop inside the
// array begins; in the loop for edges, which is not unrolled, in the order of rows.
template <bool EDGE, int LEVEL>
INLINE void levels(Rows& rows, int phase, Place at, int x0, int first, int last, char* memory) {
    if constexpr (LEVEL <= K) {
        at.row -= RY;
        const int slot = modulo(phase - LEVEL * RY, SLOTS), here = EDGE ? RY : slot;
        Row out;
        if constexpr (EDGE && LEVEL > 1 && RY > 0 && BOUNDARY != WRAP) {
            if (!at.all.y.beyond(at.row) && (at.all.y.beyond(at.row - RY) || at.all.y.beyond(at.row + RY))) {
#define X(n, T, constant) fill_ring<RY>(rows.w##n[LEVEL - 1], at.all.y, at.row, here, T(constant));
                PLANES(X)
#undef X
            }
        }
        compute<EDGE, LEVEL>(rows, here, at, out);
        if constexpr (LEVEL < K) {
#define X(n, T, constant)                                                                                \
    if constexpr (EDGE && RX > 0 && BOUNDARY != WRAP) fill_columns(out.w##n, at.all.x, x0, T(constant)); \
    push<EDGE>(rows.w##n[LEVEL], out.w##n, slot);
            PLANES(X)
#undef X
            levels<EDGE, LEVEL + 1>(rows, phase, at, x0, first, last, memory);
        } else if (at.row >= first && at.row < last) {
#define X(n, T, constant) \
    store<EDGE>(out.w##n, at.all.out##n, at.all.out_pitch##n, STRIDE##n, at, x0, memory);
            PLANES(X)
#undef X
        }
    }
}

// Take over the next row of level 0, ask for another, and compute a row of each level.
template <bool EDGE>
INLINE void advance(Rows& rows, Row (&ahead)[AHEAD], int phase, Place at, int x0, int first, int last, char* memory) {
    const Place next{at.all, at.column, at.row + AHEAD};
#define X(n, T, constant)                                                                             \
    {                                                                                                 \
        T row[C];                                                                                     \
        UNROLL for (int c = 0; c < C; ++c) {                                                          \
            row[c] = ahead[0].w##n[c];                                                                \
            UNROLL for (int p = 1; p < AHEAD; ++p) ahead[p - 1].w##n[c] = ahead[p].w##n[c];           \
        }                                                                                             \
        load<EDGE>(ahead[AHEAD - 1].w##n, all.in##n, all.in_pitch##n, STRIDE##n, next, x0, T(constant)); \
        if constexpr (!EDGE && VECTOR == 1) gather(row, memory);                                      \
        push<EDGE>(rows.w##n[0], row, phase);                                                         \
    }
    const Arguments& all = at.all;
    PLANES(X)
#undef X
    levels<EDGE, 1>(rows, phase, at, x0, first, last, memory);
}

// Rotate the rings from the order of rows to that of slots for a next row of phase 0.
INLINE void rotate(Rows& rows) {
    const Rows old = rows;
    UNROLL for (int k = 0; k < K; ++k)
        UNROLL for (int s = 0; s < SLOTS; ++s)
            UNROLL for (int c = 0; c < C; ++c) {
#define X(n, T, constant) rows.w##n[k][modulo(s - k * RY, SLOTS)][c] = old.w##n[k][s][c];
                PLANES(X)
#undef X
            }
}
INLINE void rotate_back(Rows& rows) {
    const Rows old = rows;
    UNROLL for (int k = 0; k < K; ++k)
        UNROLL for (int s = 0; s < SLOTS; ++s)
            UNROLL for (int c = 0; c < C; ++c) {
#define X(n, T, constant) rows.w##n[k][s][c] = old.w##n[k][modulo(s - k * RY, SLOTS)][c];
                PLANES(X)
#undef X
            }
}

// Compute the rows from `first` to before `last` of the tile that starts at column x0. Rows from the edges of
// the array, and tiles at them, take the loop for edges, the others the unrolled one.
INLINE void strip(const Arguments& all, int x0, int first, int last, char* memory) {
    Rows rows = {};
    Row ahead[AHEAD];
    Place at{all, x0 + int(threadIdx.x % LANES) * C, first - K * RY};
    const int end = last + K * RY;
    const bool between = all.x.inside(x0, x0 + TILE) && x0 + TILE - MARGIN <= all.x.own;
    const int low = all.y.low(), high = all.y.high();
    int from = end, until = end;
    if (between) {
        from = low == NEVER ? at.row : most(at.row, low + (K + 1) * RY + BEYOND);
        if (high != NEVER) until = least(end, high - most(AHEAD, BEYOND));
        if (until <= from) from = end;
    }
    UNROLL for (int p = 0; p < AHEAD; ++p) {
        const Place next{all, at.column, at.row + p};
#define X(n, T, constant) \
    load<true>(ahead[p].w##n, all.in##n, all.in_pitch##n, STRIDE##n, next, x0, T(constant));
        PLANES(X)
#undef X
    }
    while (true) {
        NO_UNROLL for (; at.row < from; ++at.row) {
            at.column = opaque(at.column);
            advance<true>(rows, ahead, 0, at, x0, first, last, memory);
        }
        if (from >= end) return;
        rotate(rows);
        if constexpr (VECTOR == 1) {
            UNROLL for (int p = 0; p < AHEAD; ++p) {
#define X(n, T, constant) spread(ahead[p].w##n, memory);
                PLANES(X)
#undef X
            }
        }
        const int whole = until < end ? until - SLOTS + 1 : end;  // rows of no use may follow the last one
        NO_UNROLL for (; at.row < whole; at.row += SLOTS) {
            UNROLL for (int phase = 0; phase < SLOTS; ++phase) {
                const Place here{all, at.column, at.row + phase};
                advance<false>(rows, ahead, phase, here, x0, first, last, memory);
            }
        }
        rotate_back(rows);
        if constexpr (VECTOR == 1) {
            UNROLL for (int p = 0; p < AHEAD; ++p) {
#define X(n, T, constant) gather(ahead[p].w##n, memory);
                PLANES(X)
#undef X
            }
        }
        from = end;
    }
}

// The warps of the tiles at the edges, in shorter strips, come before those of the others.
INLINE void run(const Arguments& all) {
#ifdef __CUDACC_RTC__
    extern __shared__ __align__(16) char memory[];
#else
    char* memory = emulated::shared();
#endif
    const int warp = threadIdx.x / LANES, edges = all.low_tiles + all.high_tiles;
    const int others = all.tiles - edges;
    int number = int(blockIdx.x) * WARPS + warp, height = all.edge_height, tile;
    const int short_strips = (all.y.own + height - 1) / height;
    if (number < edges * short_strips) {
        tile = number % edges;
        if (tile >= all.low_tiles) tile += others;
        number /= edges;
    } else {
        number -= edges * short_strips;
        if (others == 0) return;
        tile = all.low_tiles + number % others;
        number /= others;
        height = all.height;
    }
    const int first = number * height, last = least(first + height, all.y.own);
    if (first < last) strip(all, tile * VALID - MARGIN, first, last, memory + warp * TILE * WIDEST);
}

}  // namespace steps
