// K time steps in one pass over two axes: a warp streams down the rows of a tile of 32 * C columns.
//
// A lane holds C columns of the last rows of each time level in registers, as rings of SLOTS rows; its
// neighbours along x are those of the next lanes. When row y of level 0 has come from memory, row y - k * RY
// of level k is computed, for all k. The outer MARGIN columns of a tile are of no use after K steps: they are
// another tile's columns. Rows are cut into strips, each of which starts K * RY rows earlier.
//
// Inside the array, rows of level 0 come from memory through shared memory, AHEAD - 1 rows before they are used,
// and the loop is unrolled SLOTS times, so that no row moves from register to register. A row is live until the
// last level that reads it has. A tile or row at an edge of the array takes a loop that fills the cells beyond.
#pragma once

namespace steps {

constexpr int SLOTS = 2 * RY + 1;
constexpr int TILE = LANES * C;
constexpr int VALID = TILE - 2 * MARGIN;

struct Rows {  // the state: rows of each level
#define X(n, T, constant) T w##n[K][SLOTS][C];
    PLANES(X)
#undef X
    bool large;  // whether an element of level 0 exceeds LARGEST
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

// Read a row of level 0.
template <typename T>
INLINE void load(T (&into)[C], const T* cell, int64 pitch, int stride, const Place& at, T constant) {
    const Axis &rows = at.all.y, &columns = at.all.x;
    const bool outside = BOUNDARY == CONSTANT && rows.beyond(at.row);
    const T* row = cell + rows.memory(at.row) * pitch;
    UNROLL for (int c = 0; c < C; ++c) {
        const int column = at.column + c;
        into[c] = outside || (BOUNDARY == CONSTANT && columns.beyond(column))
                      ? constant
                      : row[int64(columns.memory(column)) * stride];
    }
}

// Inside the array, rows of level 0 come through shared memory: `request` begins to copy a row, and `take` reads
// one that has arrived. With vectors, a lane takes what it requested; without, it requests every 32nd column.
template <typename T> INLINE void request(char* stage, const T* first, int stride) {
    const int lane = threadIdx.x % LANES;
    constexpr int bytes = VECTOR * sizeof(T);
    UNROLL for (int v = 0; v < C / VECTOR; ++v) {
        char* into = stage + (v * LANES + lane) * bytes;
        const T* from = first + (VECTOR > 1 ? v * VECTOR : v * LANES * stride);
        if constexpr (bytes >= 4) copy_async<bytes>(into, from);
        else *reinterpret_cast<Vector<T>*>(into) = *reinterpret_cast<const Vector<T>*>(from);
    }
}
template <typename T> INLINE void take(T (&into)[C], const char* stage) {
    const int lane = threadIdx.x % LANES;
    const Vector<T>* vectors = reinterpret_cast<const Vector<T>*>(stage);
    UNROLL for (int v = 0; v < C / VECTOR; ++v) {
        const Vector<T> one = vectors[VECTOR > 1 ? v * LANES + lane : lane * C + v];
        UNROLL for (int i = 0; i < VECTOR; ++i) into[v * VECTOR + i] = one.item[i];
    }
}

template <typename T>
INLINE void store(const T (&row)[C], T* cell, int64 pitch, int stride, const Place& at, int x0) {
    T* line = cell + at.row * pitch;
    UNROLL for (int c = 0; c < C; ++c) {
        const int column = at.column + c, place = column - x0;
        if (place >= MARGIN && place < TILE - MARGIN && column >= 0 && column < at.all.x.own)
            line[int64(column) * stride] = row[c];
    }
}
// Write the lane's columns inside the array: those vectors (without vectors, every 32nd column) for which the
// row is less than the counts of `rows`.
template <typename T>
INLINE void store_inside(T (&row)[C], T* first, int stride, char* memory, unsigned place, const unsigned (&rows)[C / VECTOR]) {
    if constexpr (VECTOR == 1) {
        const int lane = threadIdx.x % LANES;
        T* shared = reinterpret_cast<T*>(memory);
        UNROLL for (int c = 0; c < C; ++c) shared[lane * C + c] = row[c];
        __syncwarp();
        UNROLL for (int c = 0; c < C; ++c) row[c] = shared[c * LANES + lane];
        __syncwarp();
    }
    UNROLL for (int v = 0; v < C / VECTOR; ++v)
        if (place < rows[v]) {
            if constexpr (VECTOR > 1) write(first, row, v);
            else first[v * LANES * stride] = row[v];
        }
}

template <bool EDGE, int LEVEL>
INLINE void compute(const Rows& rows, int here, const Place& at, Row& out);  // the generated text

// Whether products that are not rounded inside the array might overflow.
template <typename T> INLINE bool too_large(const T (&row)[C]) {
    bool found = false;
    if constexpr (LARGEST > 0 && numpy::Traits<T>::real && sizeof(T) > 2) {
        constexpr T limit = sizeof(T) == 4 && LARGEST > 0x1p127 ? T(0x1p127) : T(LARGEST);
        UNROLL for (int c = 0; c < C; ++c) found |= numpy::absolute(row[c]) > limit;
    }
    return found;
}

// Put a new row into a ring: in its slot, or after the others, which move up.
template <bool EDGE, typename T> INLINE void push(T (&ring)[SLOTS][C], const T (&row)[C], int slot) {
    UNROLL for (int c = 0; c < C; ++c) {
        if constexpr (EDGE) {
            UNROLL for (int s = 1; s < SLOTS; ++s) ring[s - 1][c] = ring[s][c];
            ring[SLOTS - 1][c] = row[c];
        } else ring[slot][c] = row[c];
    }
}

// Where the loop inside the array requests and writes, in elements from a plane's first own cell: the lane's
// columns in row AHEAD - 1 below the newest one of level 0, and in the row of level K. One count serves all
// planes that have the same pitch. slot: of the newest row, among those on their way. rows: how many are written
// of each of the lane's vectors; none of those in the margins.
struct Cursor {
#define X(n, T, constant) int64 from##n, to##n;
    PLANES(X)
#undef X
    int64 from, to;
    int slot;
    unsigned rows[C / VECTOR];

    INLINE_MEMBER void down(const Arguments& given) {
        from += given.in_pitch0;
        to += given.in_pitch0;
#define X(n, T, constant)            \
    from##n += given.in_pitch##n;    \
    to##n += given.out_pitch##n;
        PLANES(X)
#undef X
        slot = slot + 1 == AHEAD ? 0 : slot + 1;
    }
};

// Compute a row of each level. A ring holds row y in slot y % SLOTS, counted from where the loop inside the
// array begins; in the loop for edges, which is not unrolled, in the order of rows.
template <bool EDGE, int LEVEL>
INLINE void levels(Rows& rows, int phase, Place at, int x0, int first, int last, char* memory, const Cursor& cursor) {
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
            levels<EDGE, LEVEL + 1>(rows, phase, at, x0, first, last, memory, cursor);
        } else {
            const Arguments& all = at.all;
            const unsigned place = at.row - first;
#define X(n, T, constant)                                                                                      \
    if constexpr (EDGE) {                                                                                      \
        if (place < unsigned(last - first)) store(out.w##n, all.out##n, all.out_pitch##n, STRIDE##n, at, x0);  \
    } else                                                                                                     \
        store_inside(out.w##n, all.out##n + (ONE_PITCH ? cursor.to : cursor.to##n), STRIDE##n, memory + SCRATCH, place, cursor.rows);
            PLANES(X)
#undef X
        }
    }
}

// Request a row of level 0.
INLINE void request(const Arguments& all, const Cursor& cursor, char* memory, int slot) {
#define X(n, T, constant) \
    request(memory + STAGE##n + slot * (TILE * sizeof(T)), all.in##n + (ONE_PITCH ? cursor.from : cursor.from##n), STRIDE##n);
    PLANES(X)
#undef X
    commit_copies();
}

// Put a new row into the ring of level 0, and compute a row of each level: at an edge, and inside the array.
INLINE void advance(Rows& rows, Row& ahead, const Place& at, int x0, int first, int last, char* memory) {
    const Place below{at.all, at.column, at.row + 1};
#define X(n, T, constant)                 \
    rows.large |= too_large(ahead.w##n);     \
    push<true>(rows.w##n[0], ahead.w##n, 0); \
    load(ahead.w##n, at.all.in##n, at.all.in_pitch##n, STRIDE##n, below, T(constant));
    PLANES(X)
#undef X
    levels<true, 1>(rows, 0, at, x0, first, last, memory, Cursor{});
}
INLINE void advance_inside(Rows& rows, int phase, const Place& at, int x0, int first, int last, char* memory, const Cursor& cursor) {
    const int slot = SLOTS % AHEAD == 0 ? phase % AHEAD : cursor.slot;
    request(at.all, cursor, memory, slot == 0 ? AHEAD - 1 : slot - 1);
    await_copies<AHEAD - 1>();
    if constexpr (VECTOR == 1) __syncwarp();
#define X(n, T, constant)                                                          \
    take(rows.w##n[0][phase], memory + STAGE##n + slot * (TILE * sizeof(T)));      \
    rows.large |= too_large(rows.w##n[0][phase]);
    PLANES(X)
#undef X
    if constexpr (VECTOR == 1) __syncwarp();
    levels<false, 1>(rows, phase, at, x0, first, last, memory, cursor);
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
    Row ahead;
    const int lane = threadIdx.x % LANES;
    Place at{all, x0 + lane * C, first - K * RY};
    const int end = last + K * RY;
    const bool between = all.x.inside(x0, x0 + TILE) && x0 + TILE - MARGIN <= all.x.own;
    const int low = all.y.low(), high = all.y.high();
    int from = end, until = end;
    if (between) {
        from = low == NEVER ? at.row : most(at.row, low + (K + 1) * RY + BEYOND);
        if (high != NEVER) until = least(end, high - BEYOND - SLOTS + 1);
        // The loop takes SLOTS rows at once, and requests AHEAD - 1 more.
        until = least(until, all.y.own + all.y.after - SLOTS - AHEAD + 2);
        if (until <= from) from = end;
    }
    bool inside = from < end;
    while (true) {
        if (at.row < from) {
#define X(n, T, constant) load(ahead.w##n, all.in##n, all.in_pitch##n, STRIDE##n, at, T(constant));
            PLANES(X)
#undef X
        }
        NO_UNROLL for (; at.row < from; ++at.row) {
            at.column = opaque(at.column);
            advance(rows, ahead, at, x0, first, last, memory);
        }
        if (from >= end) {
            if (LARGEST == 0 || !inside || !in_any_lane(rows.large)) return;
            inside = false;  // again, with the products that the loop for edges rounds
            rows = {};
            at.row = first - K * RY;
            continue;
        }
        rotate(rows);
        Cursor cursor;
        cursor.from = at.row * all.in_pitch0 + at.column;
        cursor.to = cursor.from - (K * RY + AHEAD - 1) * all.in_pitch0;
        cursor.slot = 0;
#define X(n, T, constant)                                                                                      \
    cursor.from##n = at.row * all.in_pitch##n + (VECTOR > 1 ? at.column : int64(x0 + lane) * STRIDE##n);          \
    cursor.to##n = cursor.from##n + (at.row - K * RY - AHEAD + 1) * all.out_pitch##n - at.row * all.in_pitch##n;
        PLANES(X)
#undef X
        UNROLL for (int v = 0; v < C / VECTOR; ++v) {
            const int place = VECTOR > 1 ? lane * C + v * VECTOR : v * LANES + lane;
            cursor.rows[v] = place >= MARGIN && place < TILE - MARGIN ? last - first : 0;
        }
        UNROLL for (int p = 0; p < AHEAD - 1; ++p) {
            request(all, cursor, memory, p);
            cursor.down(all);
        }
        cursor.slot = 0;
        NO_UNROLL for (; at.row < until; at.row += SLOTS) {
            UNROLL for (int phase = 0; phase < SLOTS; ++phase) {
                const Place here{all, at.column, at.row + phase};
                advance_inside(rows, phase, here, x0, first, last, memory, cursor);
                cursor.down(all);
            }
        }
        await_copies<0>();
        rotate_back(rows);
        from = end;
    }
}

// What takes longest comes first: the tiles at the edges, in shorter strips, and of the others the last strips
// and the first ones, which end and begin in the loop for edges.
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
        height = all.height;
        const int strips = (all.y.own + height - 1) / height;
        number /= others;
        if (number >= strips) return;
        number = number == 0 ? strips - 1 : number - 1;
    }
    const int first = number * height, last = least(first + height, all.y.own);
    if (first < last) strip(all, tile * VALID - MARGIN, first, last, memory + warp * WARP_BYTES);
}

}  // namespace steps
