// K time steps in one pass over two axes: a warp streams down the rows of a tile of 32 * C columns.
//
// A lane holds C columns of the last rows of each time level in registers, as rings of SLOTS rows; its
// neighbours along x are those of the next lanes. When row y of level 0 has come from memory, row y - k * RY
// of level k is computed, for all k. The outer MARGIN columns of a tile are of no use after K steps: they are
// another tile's columns. Rows are cut into strips, each of which starts K * RY rows earlier.
//
// Inside the array, rows of level 0 come from memory through shared memory, AHEAD - 1 rows before they are used,
// and the loop is unrolled PERIOD times, so that no row moves from register to register: row y is in slot y % PERIOD.
// PERIOD is less than SLOTS where fewer rows are read, as kept values have what others are read for: an H200 runs loops
// of more than about 2000 instructions slower. A row is live until the last level that reads it has. A row at an edge of
// the array takes a loop that fills the cells beyond; a tile at one, where the columns of a lane are cells or all beyond,
// takes the loop inside with a few instructions more.
// An array that wraps around has no edges along an axis that is not split: cells beyond are read where they are,
// if the columns of each lane are side by side.
//
// A program with conditions on the place has three texts. In the loop inside, none of those that only cells near the
// ends of the array need is computed; a tile at an end along x takes the text in which those along y are decided.
// Values that several rows read (VALUES) are kept beside the rows of each step: as large rings, in the same slots. The loop
// inside computes a row of them once, when the last row that it reads is at hand. The loop for edges, where copies of
// other cells decide them, computes them again for each cell, and makes the ones that the loop inside begins with.
// Cells at an end may read further than others, KEPT rows further up, or LATE rows further down. What is read further up
// is kept by the loop for edges beside the rings. The LOW_Y rows from the first one on are computed LATE rows later
// if they read further down, when the ring has all that they read, and before another level reads them.
#pragma once

namespace steps {

// Whether columns beyond the array are read on its other side at addresses of no vectors, as its last ones repeat some.
constexpr bool UNEVEN = BOUNDARY == WRAP && REPEATS_X % C != 0;
constexpr bool SIDES_DIFFER = SIDES_KNOWN && (FILLED || LOW_X + HIGH_X > 0);
constexpr bool PLACED_SIDES = SIDES_KNOWN && LOW_X + HIGH_X > 0;
constexpr int SLOTS = 2 * RY + 1;
constexpr int TILE = LANES * C;
constexpr int VALID = TILE - 2 * MARGIN;
constexpr int FURTHEST = 2 * K * RY + RY + BEYOND + SLOTS;  // rows beyond those of a strip that are read, at most

struct Rows {  // the state: rows of each level, and of the loop for edges those before them
#define X(n, T, constant) T w##n[K][SLOTS][C], kept##n[K][KEPT ? KEPT : 1][C];
    PLANES(X)
#undef X
#define X(n, T, lead) T value##n[K][SLOTS][C];
    VALUES(X)
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

// Whether a lane's columns are cells of the array, and side by side in memory at addresses of vectors.
INLINE bool reads_vectors(const Place& at) { return VECTOR > 1 && at.all.x.inside(at.column, at.column + C); }

// Whether an axis is whole and the columns of each lane of a tile are cells of the array, or all beyond.
INLINE bool in_whole_lanes(const Axis& columns, int x0) {
    return VECTOR > 1 && columns.whole() && columns.length % C == 0 && x0 % C == 0;
}
// Whether cells of a tile that are of use are so near an end of the array along x that conditions differ there.
INLINE bool near_end(const Axis& x, int x0) { return near_end(x, x0 + RX, x0 + TILE - RX, LOW_X, HIGH_X); }
INLINE int first_column(const Arguments& all, int tile) { return first_column(all.x, tile * VALID - MARGIN); }

// Whether columns, or rows, beyond the array are read on its other side by the loop inside: no row that is read is
// further beyond than the array is long.
INLINE bool turns(const Axis& columns, int x0) {
    return BOUNDARY == WRAP && in_whole_lanes(columns, x0) && (!UNEVEN || columns.length >= TILE + 2 * REPEATS_X);
}
INLINE bool rows_turn(const Axis& rows) {
    return BOUNDARY == WRAP && rows.whole() && rows.length - REPEATS_Y >= FURTHEST;
}

// The place in memory of a row that the loop inside reads. If the boundary wraps around, the rows in memory follow
// each other in a circle: of a whole array they are the right ones, otherwise rows beyond are of no use.
INLINE int rows_in_memory(const Axis& rows) { return rows.before + rows.own + rows.after; }
INLINE int memory_inside(const Axis& rows, int row) {
    if (BOUNDARY != WRAP) return rows.clamped(row);
    const int all = rows_in_memory(rows);
    return row < -rows.before ? row + all : row >= rows.own + rows.after ? row - all : row;
}

// Whether conditions alone make cells at the array's ends along y differ.
constexpr bool PLACED = BOUNDARY == NONE || (BOUNDARY == WRAP && LOW_Y + HIGH_Y > 0);
// The row before the first one that is a copy of another, and the first one after the last: NEVER if there is none
// for the loop inside. If PLACED, the first row for which conditions are as inside, and the one after the last.
INLINE int low_edge(const Axis& rows) {
    if (PLACED) return LOW_Y - rows.start;
    return FILLED ? -rows.start : rows.whole() && !rows_turn(rows) ? 0 : NEVER;
}
INLINE int high_edge(const Axis& rows) {
    if (PLACED) return rows.length - HIGH_Y - rows.start;
    return FILLED ? rows.length - rows.start : rows.whole() && !rows_turn(rows) ? rows.own : NEVER;
}
// The rows of level 0 that the loop inside begins with, and before which it ends, of a strip that reads those from
// `begin` to before `end`, for rows of level K from `first` on. The loop takes PERIOD rows at once, and requests
// AHEAD - 1 more.
INLINE int begin_inside(const Axis& rows, int begin, int first) {
    const int low = low_edge(rows);
    if (PLACED) return first - (K - 1) * RY >= low ? begin : low + LATE + K * RY;
    return low == NEVER ? begin : most(begin, low + K * RY + most(RY + BEYOND, LOW_Y));
}
INLINE int end_inside(const Axis& rows, int end) {
    const int high = high_edge(rows);
    int until = end;
    if (PLACED) until = least(end, high + RY - most(KEPT - 1, 0) - PERIOD + 1);
    else if (high != NEVER) until = least(end, high + least(-BEYOND, RY - HIGH_Y) - PERIOD + 1);
    // Over one axis, all rows are the same one in memory.
    if (BOUNDARY != WRAP && AXES > 1) until = least(until, rows.own + rows.after - PERIOD - AHEAD + 2);
    if (BOUNDARY == WRAP && PLACED && rows.whole() && !rows_turn(rows)) return NEVER;
    return until;
}

// The lane's columns of an input that no output feeds, dy rows away. Inside, at.column is a place in memory. PART: the
// component, of pairs.
template <bool EDGE, int PART, typename T>
INLINE Lane<T> fixed(const T* cell, int64 pitch, int stride, const Place& at, int dy, T constant) {
    const Axis &rows = at.all.y, &columns = at.all.x;
    const int row = at.row + dy;
    Lane<T> found;
    if constexpr (EDGE) {
        const T* line = cell + rows.memory(row) * pitch;
        if (stride == 1 && reads_vectors(at) && !(BOUNDARY == CONSTANT && rows.beyond(row))) {
            read(found.v, line + at.column);
            return found;
        }
        const int first = opaque(at.column);
        UNROLL for (int c = 0; c < C; ++c) {
            const int column = first + c;
            const bool beyond = BOUNDARY == CONSTANT && (rows.beyond(row) || columns.beyond(column));
            found.v[c] = beyond ? constant : line[int64(columns.memory(column)) * stride];
        }
    } else {
        const T* line = cell + memory_inside(rows, row) * pitch + int64(at.column) * stride;
        if (VECTOR > 1 && stride == 1) read(found.v, line);
        else if (VECTOR > 1 && stride == 2) read_part<PART>(found.v, line);
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
    if (stride == 1 && reads_vectors(at) && !outside) {
        read(into, row + at.column);
        return;
    }
    const int first = opaque(at.column);
    UNROLL for (int c = 0; c < C; ++c) {
        const int column = first + c;
        into[c] = outside || (BOUNDARY == CONSTANT && columns.beyond(column))
                      ? constant
                      : row[int64(columns.memory(column)) * stride];
    }
}

// Inside the array, rows of level 0 come through shared memory: `request` begins to copy a row, and `take` reads
// one that has arrived. With vectors, a lane takes what it requested; without, it requests every 32nd column.
// PART: elements of a vector whose address is a multiple of them, also of columns on the array's other side.
INLINE constexpr int common_divisor(int a, int b) { return b == 0 ? a : common_divisor(b, a % b); }
constexpr int PART = UNEVEN ? common_divisor(VECTOR, REPEATS_X) : VECTOR;
template <int N, typename T> INLINE void request_items(char* into, const T* from) {
    struct alignas(N * sizeof(T)) Items { T item[N]; };
    if constexpr (sizeof(Items) >= 4) copy_async<sizeof(Items)>(into, from);
    else *reinterpret_cast<Items*>(into) = *reinterpret_cast<const Items*>(from);
}
template <typename T> INLINE void request(char* stage, const T* first, int stride) {
    const int lane = threadIdx.x % LANES;
    constexpr int bytes = VECTOR * sizeof(T);
    UNROLL for (int v = 0; v < C / VECTOR; ++v) {
        char* into = stage + (v * LANES + lane) * bytes;
        const T* from = first + (VECTOR > 1 ? v * VECTOR : v * LANES * stride);
        UNROLL for (int i = 0; i < VECTOR; i += PART) request_items<PART>(into + i * sizeof(T), from + i);
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

template <typename T> INLINE void request_pair(char* stage, const T* first) {
    const int lane = threadIdx.x % LANES;
    constexpr int bytes = PIECE<T> * sizeof(T);
    UNROLL for (int p = 0; p < PIECES<T>; ++p) {
        char* into = stage + (p * LANES + lane) * bytes;
        constexpr int part = UNEVEN ? common_divisor(PIECE<T>, 2 * REPEATS_X) : PIECE<T>;
        UNROLL for (int i = 0; i < PIECE<T>; i += part)
            request_items<part>(into + i * sizeof(T), first + p * PIECE<T> + i);
    }
}
template <typename T> INLINE void take_pair(T (&a)[C], T (&b)[C], const char* stage) {
    const int lane = threadIdx.x % LANES;
    UNROLL for (int p = 0; p < PIECES<T>; ++p)
        part(a, b, reinterpret_cast<const Piece<T>*>(stage)[p * LANES + lane], p);
}

template <typename T>
INLINE void store(const T (&row)[C], T* cell, int64 pitch, int stride, const Place& at, int x0) {
    T* line = cell + at.row * pitch;
    const int inner = at.column - x0;
    const bool within = inner >= MARGIN && inner + C <= TILE - MARGIN && at.column + C <= at.all.x.own;
    if (VECTOR > 1 && stride == 1 && within) {
        UNROLL for (int v = 0; v < C / VECTOR; ++v) write(line + at.column, row, v);
        return;
    }
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

template <typename T>
INLINE void store_pair_inside(const T (&a)[C], const T (&b)[C], T* first, unsigned place, const unsigned (&rows)[C / VECTOR]) {
    UNROLL for (int p = 0; p < PIECES<T>; ++p)
        if (place < rows[p * PIECE<T> / (2 * VECTOR)]) reinterpret_cast<Piece<T>*>(first)[p] = join(a, b, p);
}

// The columns beyond the array that a tile has and reads, RX on each side. target: counted from the lane's first
// column. lane, slot: which column of the tile each equals. any: whether the tile has one.
struct Beyond {
    bool any;
    int target[2 * RX + 1], lane[2 * RX + 1], slot[2 * RX + 1];
};
INLINE Beyond beyond_of(const Axis& x, int x0) {
    Beyond found = {};
    if (!FILLED) return found;
    UNROLL for (int n = 0; n < 2 * RX; ++n) {
        const int place = (n < RX ? -1 - n : x.length + n - RX) - x.start;
        const int source = most(0, least(x.source(place) - x0, TILE - 1));
        found.any |= place >= x0 && place < x0 + TILE;
        found.target[n] = place - x0 - int(threadIdx.x % LANES) * C;
        found.lane[n] = source / C;
        found.slot[n] = source % C;
    }
    return found;
}
template <typename T> INLINE void fill_columns(T (&row)[C], const Beyond& beyond, T constant) {
    if (!beyond.any) return;
    UNROLL for (int n = 0; n < 2 * RX; ++n) {
        const T value = BOUNDARY == CONSTANT ? constant : from_lane(pick(row, beyond.slot[n]), beyond.lane[n]);
        UNROLL for (int c = 0; c < C; ++c) row[c] = beyond.target[n] == c ? value : row[c];
    }
}
// Whether the values of the columns beyond the array are in lanes at hand, or no cell needs them.
INLINE bool has_sides(const Axis& columns, int x0) {
    if (!SIDES_KNOWN || !in_whole_lanes(columns, x0)) return false;
    return FILLED ? columns.length > RX : BOUNDARY == NONE || (turns(columns, x0) && near_end(columns, x0));
}
// Fill the columns beyond the array of a tile that has_sides, RX on each side.
template <typename T> INLINE void fill_sides(T (&row)[C], const Axis& x, int x0, T constant) {
    const int lane = threadIdx.x % LANES, first = -x0 / C, last = (x.length - 1 - x0) / C;
    UNROLL for (int m = 0; m < RX; ++m) {
        const int from = BOUNDARY == NEAREST ? 0 : BOUNDARY == MIRROR ? m + 1 : m;  // the end
        T low = constant, high = constant;
        if (BOUNDARY != CONSTANT) {
            low = from_lane(row[from % C], (first + from / C) & (LANES - 1));
            high = from_lane(row[C - 1 - from % C], (last - from / C) & (LANES - 1));
        }
        row[C - 1 - m % C] = lane == first - 1 - m / C ? low : row[C - 1 - m % C];
        row[m % C] = lane == last + 1 + m / C ? high : row[m % C];
    }
}
// Whether a row, or one that is read beside it, is beyond the array.
INLINE bool beside_edge(const Axis& rows, int row) {
    return unsigned(row + rows.start - RY) >= unsigned(rows.length - 2 * RY) || rows.length < 2 * RY;
}

// The generated text. compute_late: of the row LATE rows above.
template <Where WHERE, int LEVEL> INLINE void compute(Rows& rows, int here, const Place& at, Row& out);
template <int LEVEL> INLINE void compute_late(Rows& rows, int here, const Place& at, Row& out);

// Make place for a next row of the values of a step, in the order of rows.
INLINE void move_up(Rows& rows, int step) {
#define X(n, T, lead)                           \
    UNROLL for (int s = 1; s < SLOTS; ++s)      \
        UNROLL for (int c = 0; c < C; ++c) rows.value##n[step][s - 1][c] = rows.value##n[step][s][c];
    VALUES(X)
#undef X
}

// Whether products that are not rounded inside the array might overflow.
template <typename T> INLINE bool too_large(const T (&row)[C]) {
    bool found = false;
    if constexpr (LARGEST > 0 && numpy::Traits<T>::real && sizeof(T) > 2) {
        constexpr T limit = T(sizeof(T) == 4 && LARGEST > 0x1p127 ? 0x1p127 : LARGEST);
        UNROLL for (int c = 0; c < C; ++c) found |= numpy::absolute(row[c]) > limit;
    }
    return found;
}

// Put a new row into a ring: in its slot, or after the others, which move up.
template <bool EDGE, typename T, int N>
INLINE void push(T (&ring)[SLOTS][C], T (&kept)[N][C], const T (&row)[C], int slot) {
    UNROLL for (int c = 0; c < C; ++c) {
        if constexpr (EDGE) {
            if constexpr (KEPT > 0) {
                UNROLL for (int s = 1; s < KEPT; ++s) kept[s - 1][c] = kept[s][c];
                kept[KEPT - 1][c] = ring[0][c];
            }
            UNROLL for (int s = 1; s < SLOTS; ++s) ring[s - 1][c] = ring[s][c];
            ring[SLOTS - 1][c] = row[c];
        } else ring[slot][c] = row[c];
    }
}

// Where the loop inside the array requests and writes, in elements from a plane's first own cell: the lane's
// columns in row AHEAD - 1 below the newest one of level 0, and in the row of level K. One count serves all
// planes that have the same pitch. slot: of the newest row, among those on their way. rows: how many are written
// of each of the lane's vectors; none of those in the margins. left: how many rows of memory follow each other from the
// one to request on; the next is then `back` rows before the one that would follow.
struct Cursor {
#define X(n, T, constant) int64 from##n, to##n;
    PLANES(X)
#undef X
    int64 from, to;
    int slot, left, back;
    unsigned rows[C / VECTOR];

    // Count from row `source` in memory on. Whole, an array that wraps around is read from its begin again after its
    // last row, and after those of its first rows that these repeat. Of one that is split between ranks, the rows beyond
    // an end come after those that they repeat, which are left out.
    INLINE_MEMBER void count(const Axis& axis, int source) {
        left = axis.own + axis.after - source;
        back = rows_in_memory(axis) - (axis.whole() ? REPEATS_Y : 0);
        if (REPEATS_Y == 0 || axis.whole()) return;
        const int end = source < -axis.start ? -axis.start : axis.length - axis.start;
        if (source >= end || end >= axis.own + axis.after) return;
        left = end - source;
        back = -REPEATS_Y;
    }

    INLINE_MEMBER void down(const Arguments& given) {
        from += given.in_pitch0;
        to += given.in_pitch0;
#define X(n, T, constant)            \
    from##n += given.in_pitch##n;    \
    to##n += given.out_pitch##n;
        PLANES(X)
#undef X
        if constexpr (BOUNDARY == WRAP) {
            if (--left == 0) {
                from -= back * given.in_pitch0;
#define X(n, T, constant) from##n -= back * given.in_pitch##n;
                PLANES(X)
#undef X
                const bool low = given.y.start < given.y.before;  // memory has rows beyond that end
                if (REPEATS_Y == 0 || back > 0) left = back;
                else count(given.y, (low ? 0 : given.y.length) - given.y.start + REPEATS_Y);
            }
        }
        slot = slot + 1 == AHEAD ? 0 : slot + 1;
    }
};

// Compute the rows at the first end of the array that need rows further down, now that these are at hand.
template <int LEVEL>
INLINE void levels_late(Rows& rows, int here, const Place& at, int x0, int first, int last) {
    const Place before{at.all, at.column, at.row - LATE};
    if (unsigned(before.row + at.all.y.start) >= unsigned(LOW_Y)) return;
    Row out;
    compute_late<LEVEL>(rows, here, at, out);
    if constexpr (LEVEL < K) {
#define X(n, T, constant) UNROLL for (int c = 0; c < C; ++c) rows.w##n[LEVEL][SLOTS - 1 - LATE][c] = out.w##n[c];
        PLANES(X)
#undef X
    } else if (unsigned(before.row - first) < unsigned(last - first)) {
#define X(n, T, constant) store(out.w##n, at.all.out##n, at.all.out_pitch##n, STRIDE##n, before, x0);
        PLANES(X)
#undef X
    }
}

// Compute a row of each level. A ring holds row y in slot y % PERIOD, counted from where the loop inside the
// array begins; in the loop for edges, which is not unrolled, in the order of rows.
template <Where WHERE, int LEVEL>
INLINE void levels(Rows& rows, int phase, Place at, int x0, int first, int last, char* memory, const Cursor& cursor, const Beyond& beyond) {
    if constexpr (LEVEL <= K) {
        at.row -= RY;
        constexpr bool EDGE = WHERE == EDGES;
        const int slot = modulo(phase - LEVEL * RY, PERIOD), here = EDGE ? RY : slot;
        Row out;
        if constexpr (EDGE && LEVEL > 1 && RY > 0 && FILLED) {
            if (beside_edge(at.all.y, at.row) && !at.all.y.beyond(at.row)) {
#define X(n, T, constant) fill_ring<RY>(rows.w##n[LEVEL - 1], at.all.y, at.row, here, T(constant));
                PLANES(X)
#undef X
            }
        }
        compute<WHERE, LEVEL>(rows, here, at, out);
        if constexpr (LEVEL < K) {
#define X(n, T, constant)                                                                                \
    if constexpr (EDGE && RX > 0 && FILLED) fill_columns(out.w##n, beyond, T(constant));                     \
    if constexpr (WHERE == SIDES && FILLED) fill_sides(out.w##n, at.all.x, x0, T(constant));                 \
    push<EDGE>(rows.w##n[LEVEL], rows.kept##n[LEVEL], out.w##n, slot);
            PLANES(X)
#undef X
            if constexpr (EDGE && LATE > 0) levels_late<LEVEL>(rows, here, at, x0, first, last);
            levels<WHERE, LEVEL + 1>(rows, phase, at, x0, first, last, memory, cursor, beyond);
        } else {
            const Arguments& all = at.all;
            const unsigned place = at.row - first;
            if constexpr (EDGE) {
#define X(n, T, constant) \
    if (place < unsigned(last - first)) store(out.w##n, all.out##n, all.out_pitch##n, STRIDE##n, at, x0);
                PLANES(X)
#undef X
            } else {
#define X(n, T, constant) \
    store_inside(out.w##n, all.out##n + (ONE_PITCH ? cursor.to : cursor.to##n), STRIDE##n, memory + SCRATCH, place, cursor.rows);
                SINGLES(X)
#undef X
#define X(a, b, T) \
    store_pair_inside(out.w##a, out.w##b, all.out##a + (ONE_PITCH ? cursor.to : cursor.to##a), place, cursor.rows);
                PAIRS(X)
#undef X
            }
            if constexpr (EDGE && LATE > 0) levels_late<LEVEL>(rows, here, at, x0, first, last);
        }
    }
}

// Request a row of level 0.
INLINE void request(const Arguments& all, const Cursor& cursor, char* memory, int slot) {
#define X(n, T, constant)                                                                                          \
    request(memory + STAGE##n + slot * (TILE * sizeof(T)), all.in##n + (ONE_PITCH ? cursor.from : cursor.from##n), \
            STRIDE##n);
    SINGLES(X)
#undef X
#define X(a, b, T)                                                             \
    request_pair(memory + STAGE##a + slot * (2 * TILE * sizeof(T)),            \
                 all.in##a + (ONE_PITCH ? cursor.from : cursor.from##a));
    PAIRS(X)
#undef X
    commit_copies();
}

// Put a new row into the ring of level 0, and compute a row of each level: at an edge, and inside the array.
INLINE void advance(Rows& rows, Row& ahead, const Place& at, int x0, int first, int last, char* memory, const Beyond& beyond) {
    const Place below{at.all, at.column, at.row + 1};
#define X(n, T, constant)                 \
    rows.large |= too_large(ahead.w##n);     \
    push<true>(rows.w##n[0], rows.kept##n[0], ahead.w##n, 0); \
    load(ahead.w##n, at.all.in##n, at.all.in_pitch##n, STRIDE##n, below, T(constant));
    PLANES(X)
#undef X
    levels<EDGES, 1>(rows, 0, at, x0, first, last, memory, Cursor{}, beyond);
}
template <Where WHERE>
INLINE void advance_inside(Rows& rows, int phase, const Place& at, int x0, int first, int last, char* memory, const Cursor& cursor) {
    const int slot = PERIOD % AHEAD == 0 ? phase % AHEAD : cursor.slot;
    request(at.all, cursor, memory, slot == 0 ? AHEAD - 1 : slot - 1);
    await_copies<AHEAD - 1>();
    if constexpr (VECTOR == 1) __syncwarp();
#define X(n, T, constant) take(rows.w##n[0][phase], memory + STAGE##n + slot * (TILE * sizeof(T)));
    SINGLES(X)
#undef X
#define X(a, b, T) take_pair(rows.w##a[0][phase], rows.w##b[0][phase], memory + STAGE##a + slot * (2 * TILE * sizeof(T)));
    PAIRS(X)
#undef X
#define X(n, T, constant)                                                          \
    rows.large |= too_large(rows.w##n[0][phase]);                                  \
    if constexpr (WHERE == SIDES && FILLED) fill_sides(rows.w##n[0][phase], at.all.x, x0, T(constant));
    PLANES(X)
#undef X
    if constexpr (VECTOR == 1) __syncwarp();
    levels<WHERE, 1>(rows, phase, at, x0, first, last, memory, cursor, Beyond{});
}

// The slot of a row of level k, of which the order of rows has place s, before a next row of phase 0.
INLINE constexpr int slot_of(int s, int k) { return modulo(s - SLOTS - k * RY, PERIOD); }
// Rotate the rings from the order of rows to that of slots.
INLINE void rotate(Rows& rows) {
    const Rows old = rows;
    UNROLL for (int k = 0; k < K; ++k)
        UNROLL for (int c = 0; c < C; ++c) {
#define X(n, T, constant) \
    UNROLL for (int s = SLOTS - PERIOD; s < SLOTS; ++s) rows.w##n[k][slot_of(s, k)][c] = old.w##n[k][s][c];
            PLANES(X)
#undef X
#define X(n, T, lead) \
    UNROLL for (int s = most(RY + lead + 1 - PERIOD, 0); s <= RY + lead; ++s) rows.value##n[k][slot_of(s, k)][c] = old.value##n[k][s][c];
            VALUES(X)
#undef X
        }
}
INLINE void rotate_back(Rows& rows) {
    const Rows old = rows;
    UNROLL for (int k = 0; k < K; ++k)
        UNROLL for (int s = SLOTS - PERIOD; s < SLOTS; ++s)
            UNROLL for (int c = 0; c < C; ++c) {
#define X(n, T, constant) rows.w##n[k][s][c] = old.w##n[k][slot_of(s, k)][c];
                PLANES(X)
#undef X
            }
}

// The loop inside the array, from at.row on.
template <Where WHERE>
INLINE void rows_inside(Rows& rows, Place& at, int column, int x0, int first, int last, int until, char* memory, Cursor& cursor) {
    NO_UNROLL for (; at.row < until; at.row += PERIOD) {
        UNROLL for (int phase = 0; phase < PERIOD; ++phase) {
            const Place here{at.all, column, at.row + phase};
            advance_inside<WHERE>(rows, phase, here, x0, first, last, memory, cursor);
            cursor.down(at.all);
        }
    }
}

// Compute the rows from `first` to before `last` of the tile that starts at column x0. Rows from the edges of
// the array, and tiles at its ends whose lanes are cut, take the loop for edges, the others the unrolled one.
INLINE void strip(const Arguments& all, int x0, int first, int last, char* memory) {
    Rows rows = {};
    Row ahead;
    const int lane = threadIdx.x % LANES;
    int needed = first, end = last + K * RY;
    if (KEPT > 0) {  // by rows at an end of the array, which read further up
        needed = least(needed, high_edge(all.y) - KEPT);
        if (needed - K * RY < low_edge(all.y)) needed = least(needed, -all.y.start);
    }
    if (LATE > 0) end = most(end, low_edge(all.y) + LATE + K * RY);
    const int begin = most(needed - K * RY, all.known);
    Place at{all, x0 + lane * C, begin};
    const bool in_memory = all.x.inside(x0, x0 + TILE) && x0 + TILE - MARGIN <= all.x.own;
    const bool inside_x = in_memory && !near_end(all.x, x0), sides = !inside_x && has_sides(all.x, x0);
    const bool around = turns(all.x, x0) && !near_end(all.x, x0), between = inside_x || sides || around;
    int column = at.column;
    if (sides || around) column = UNEVEN ? all.x.memory(column) : all.x.memory(column) / C * C;
    int from = end, until = end;
    if (between) {
        from = begin_inside(all.y, begin, needed);
        until = end_inside(all.y, end);
        if (until <= from || (PERIOD < SLOTS && until < end)) from = end;  // the loop for edges reads SLOTS rows
    }
    bool inside = from < end;
    while (true) {
        if (at.row < from) {
#define X(n, T, constant) load(ahead.w##n, all.in##n, all.in_pitch##n, STRIDE##n, at, T(constant));
            PLANES(X)
#undef X
        }
        const Beyond beyond = beyond_of(all.x, x0);
        NO_UNROLL for (; at.row < from; ++at.row) {
            advance(rows, ahead, at, x0, first, last, memory, beyond);
        }
        if (from >= end) {
            if (LARGEST == 0 || !inside || !in_any_lane(rows.large)) return;
            inside = false;  // again, with the products that the loop for edges rounds
            rows = {};
            at.row = begin;
            continue;
        }
        rotate(rows);
        Cursor cursor;
        const int source = all.y.memory(at.row), target = at.row - K * RY - AHEAD + 1;
        cursor.from = source * all.in_pitch0 + column * STRIDE0;
        cursor.to = target * all.in_pitch0 + column * STRIDE0;
        cursor.slot = 0;
        cursor.count(all.y, source);
#define X(n, T, constant)                                                                           \
    {                                                                                               \
        const int64 place = int64(VECTOR > 1 ? column : x0 + lane) * STRIDE##n;                     \
        cursor.from##n = source * all.in_pitch##n + place;                                          \
        cursor.to##n = target * all.out_pitch##n + place;                                           \
    }
        PLANES(X)
#undef X
        UNROLL for (int v = 0; v < C / VECTOR; ++v) {
            const int place = VECTOR > 1 ? lane * C + v * VECTOR : v * LANES + lane;
            const bool written = place >= MARGIN && place < TILE - MARGIN && x0 + place < all.x.own;
            cursor.rows[v] = written ? last - first : 0;
        }
        UNROLL for (int p = 0; p < AHEAD - 1; ++p) {
            request(all, cursor, memory, p);
            cursor.down(all);
        }
        cursor.slot = 0;
        if (SIDES_DIFFER && sides) rows_inside<SIDES>(rows, at, column, x0, first, last, until, memory, cursor);
        else rows_inside<INSIDE>(rows, at, column, x0, first, last, until, memory, cursor);
        await_copies<0>();
        rotate_back(rows);
        from = end;
    }
}

INLINE char* shared_memory() {
#ifdef __CUDACC_RTC__
    extern __shared__ __align__(16) char memory[];
    return memory + threadIdx.x / LANES * WARP_BYTES;
#else
    return emulated::shared() + threadIdx.x / LANES * WARP_BYTES;
#endif
}

// Find a warp's tile and rows; false if it has none.
//
// What takes longest comes first: the tiles in the loop for edges, in shorter strips, then the first tile and the last
// two, if conditions on the place make their cells differ, and of all these and the others the last strips and the
// first ones, which end and begin in the loop for edges. The first strip is `lead` rows shorter than others.
INLINE bool find_strip(const Arguments& all, int& tile, int& first, int& last) {
    const int edges = all.low_tiles + all.high_tiles, others = all.tiles - edges;
    int number = opaque(blockIdx.x) * WARPS + threadIdx.x / LANES, height = all.edge_height, lead = 0;
    const int short_strips = (all.y.own + height - 1) / height;
    if (number < edges * short_strips) {
        tile = number % edges;
        if (tile >= all.low_tiles) tile += others;
        number /= edges;
    } else {
        number -= edges * short_strips;
        if (others == 0) return false;
        height = all.height;
        lead = all.lead;
        const int strips = (all.y.own + lead + height - 1) / height, sides = PLACED_SIDES && others > 3 ? 3 : 0;
        if (number < sides * strips) {
            tile = number % 3 == 0 ? 0 : others - number % 3;
            number /= 3;
        } else {
            number -= sides * strips;
            tile = sides / 3 + number % (others - sides);
            number /= others - sides;
        }
        tile += all.low_tiles;
        if (number >= strips) return false;
        number = number == 0 ? strips - 1 : number - 1;
    }
    const int next = (number + 1) * height - lead;
    first = most(next - height, 0);
    last = least(next, all.y.own);
    return first < last;
}

INLINE void run(const Arguments& all) {
    int tile, first, last;
    if (find_strip(all, tile, first, last)) strip(all, first_column(all, tile), first, last, shared_memory());
}

}  // namespace steps
