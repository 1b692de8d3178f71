// K time steps in one pass over three axes: a block streams through the planes of a tile of 32 * C columns and
// WARPS * H rows.
//
// A lane holds H rows of C columns of the last planes of each time level in registers, as rings of SLOTS
// planes. Its neighbours along x are those of the next lanes, and along y those of the next warps, which it
// reads from shared memory: a warp shares its first and last RY rows only. When plane z of level 0 has come from
// memory, plane z - k * LAG of level k is computed, for all k: what it reads of other warps was written before
// the last barrier, one a plane. The outer MARGIN columns and MARGIN_Y rows of a tile are of no use after K
// steps: they are another tile's.
//
// Cells beyond the array are computed like others and then replaced: along x by other lanes' values, along z by
// other slots of the ring, and along y one plane later, from a copy in shared memory of the rows that they equal.
// Only tiles and planes at an end of the array do so.
//
// Limited by instructions and by the wait for memory; each cell of a tile is read once and written once for K steps.
#pragma once

namespace steps {

constexpr int CELLS = H * C, TX = LANES * C, TY = WARPS * H;
constexpr int VALID = TX - 2 * MARGIN, MARGIN_Y = K * RY, VALID_Y = TY - 2 * MARGIN_Y;
constexpr int SHARED_ROWS = H < 2 * RY ? H : 2 * RY;  // of a warp
constexpr int LINES = TY + 2 * REACH_Y;               // rows that a tile reads of any input

struct Planes {  // the state: planes of each level
#define X(n, T, constant) T w##n[K][SLOTS][CELLS];
    PLANES(X)
#undef X
};
struct Patch {
#define X(n, T, constant) T w##n[CELLS];
    PLANES(X)
#undef X
};

// Where a lane computes: its columns from `column` on, its rows from `row` on, and a plane. x_edge, y_edge:
// whether the tile holds cells beyond the array or, along x, the memory. EDGE, below: whether one is so, or a
// plane is beyond the array. lines, columns: the places in memory of the tile's rows, from REACH_Y before the
// first one on, and columns; NEVER for the boundary's constant. edges: of each row and column beyond the array,
// the place in the tile of the one that it equals, and its own. writes, beyond, lowest, highest: a bit for each of
// the lane's rows that it writes to memory, that is beyond the array, and that the rows at an end of it equal.
struct Place {
    const Arguments& all;
    char* memory;
    int *lines, *columns, *edges;
    int x0, y0, column, row, plane, writes, beyond, lowest, highest;
    bool x_edge, y_edge;

    INLINE_MEMBER int warp() const { return int(threadIdx.x) / LANES; }
    INLINE_MEMBER int lane() const { return int(threadIdx.x) % LANES; }
};

// The element that is `count` times `pitch` elements away: one multiplication of 32 bits to 64.
template <typename T> INLINE T* element(T* first, int count, int pitch) {
    return reinterpret_cast<T*>(reinterpret_cast<uint64>(first) + uint64(int64(count) * (pitch * int(sizeof(T)))));
}
// N elements side by side in global memory. Those that are read are not written by this kernel.
#ifdef __CUDACC_RTC__
template <int BYTES> struct Word { using Type = uint4; };
template <> struct Word<1> { using Type = unsigned char; };
template <> struct Word<2> { using Type = unsigned short; };
template <> struct Word<4> { using Type = unsigned; };
template <> struct Word<8> { using Type = uint2; };
template <int N, typename T> INLINE void read_global(T* into, const T* from) {
    struct Items { T item[N]; };
    using W = typename Word<sizeof(Items)>::Type;
    const Items found = numpy::bits<Items>(__ldg(reinterpret_cast<const W*>(from)));
    UNROLL for (int i = 0; i < N; ++i) into[i] = found.item[i];
}
template <int N, typename T> INLINE void write_global(T* into, const T* from) {
    struct Items { T item[N]; };
    using W = typename Word<sizeof(Items)>::Type;
    Items all;
    UNROLL for (int i = 0; i < N; ++i) all.item[i] = from[i];
    __stcs(reinterpret_cast<W*>(into), numpy::bits<W>(all));
}
#else
template <int N, typename T> INLINE void read_global(T* into, const T* from) {
    for (int i = 0; i < N; ++i) into[i] = from[i];
}
template <int N, typename T> INLINE void write_global(T* into, const T* from) {
    for (int i = 0; i < N; ++i) into[i] = from[i];
}
#endif
// The barrier in two halves: what a warp shared before `arrive` others may read after `await`. A slot of shared
// memory is written again SLOTS planes later. EARLY: whether all have read it by then if they arrive before the
// last level is computed.
constexpr bool EARLY = K > 1 && RZ > 0 && LAG == RZ;
#ifdef __CUDACC_RTC__
INLINE unsigned barrier_of(const char* memory) { return unsigned(__cvta_generic_to_shared(memory)); }
INLINE void arrive(const char* memory) {
    __syncwarp();
    if (threadIdx.x % LANES == 0)
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier_of(memory)) : "memory");
}
INLINE void await(const char* memory, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra AGAIN;\n}" ::"r"(
            barrier_of(memory)),
        "r"(parity)
        : "memory");
}
INLINE void initialize(const char* memory) {
    if (threadIdx.x == 0)
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier_of(memory)), "r"(WARPS) : "memory");
}
#else
INLINE void arrive(const char*) { emulated::arrive(); }
INLINE void await(const char*, int) { emulated::await(); }
INLINE void initialize(const char*) {}
#endif

INLINE int place_or_never(const Axis& axis, int place) {
    return BOUNDARY == CONSTANT && axis.beyond(place) ? NEVER : axis.memory(place);
}

// The lane's columns of row `y`, counted from the lane's first one, of a plane in memory, or what is beyond. PART: the
// component, of pairs.
template <bool X_EDGE, int PART, typename T>
INLINE void read_line(T* into, const T* plane, int pitch, int stride, const Place& at, int y, T constant) {
    const int line = at.lines[REACH_Y + at.warp() * H + y];
    if (BOUNDARY == CONSTANT && line == NEVER) {
        UNROLL for (int c = 0; c < C; ++c) into[c] = constant;
    } else if (!X_EDGE) {
        const T* from = element(plane + at.column * stride, line, pitch);
        if (VECTOR > 1 && stride == 1) {
            UNROLL for (int c = 0; c < C; c += VECTOR) read_global<VECTOR>(into + c, from + c);
        } else if (VECTOR > 1 && stride == 2) {
            T pairs[2 * C];  // one read for both parts
            UNROLL for (int c = 0; c < 2 * C; c += PIECE<T>) read_global<PIECE<T>>(pairs + c, from - PART + c);
            UNROLL for (int c = 0; c < C; ++c) into[c] = pairs[2 * c + PART];
        } else UNROLL for (int c = 0; c < C; ++c) read_global<1>(into + c, from + c * stride);
    } else UNROLL for (int c = 0; c < C; ++c) {
        const int column = at.columns[at.lane() * C + c];
        if (BOUNDARY == CONSTANT && column == NEVER) into[c] = constant;
        else read_global<1>(into + c, element(plane, line, pitch) + column * stride);
    }
}
// A plane in memory; none if it holds the boundary's constant.
template <bool EDGE, typename T> INLINE const T* plane_of(const T* cell, int64 planes, const Place& at, int plane) {
    if (EDGE && BOUNDARY == CONSTANT && at.all.z.beyond(plane)) return nullptr;
    return cell + (EDGE ? at.all.z.memory(plane) : plane) * planes;
}
template <bool EDGE, int PART, typename T>
INLINE Lane<T> fixed(const T* plane, int pitch, int stride, const Place& at, int y, T constant) {
    Lane<T> found;
    if (EDGE && BOUNDARY == CONSTANT && plane == nullptr) UNROLL for (int c = 0; c < C; ++c) found.v[c] = constant;
    else if (EDGE && at.x_edge) read_line<true, PART>(found.v, plane, pitch, stride, at, y, constant);
    else read_line<false, PART>(found.v, plane, pitch, stride, at, y, constant);
    return found;
}

// The place in shared memory of the lane's columns of row `y` of a warp, in a plane of one level.
template <typename T> INLINE T* shared(const Place& at, int offset, int level, int slot, int warp, int y) {
    const int place = y < RY ? y : y - H + SHARED_ROWS;
    T* first = reinterpret_cast<T*>(at.memory + offset);
    return first + ((level * SLOTS + slot) * WARPS * SHARED_ROWS + place + warp * SHARED_ROWS) * TX + at.lane() * C;
}
// The same of row `m` of those beyond the array: RY before it, and RY after it.
template <typename T> INLINE T* outside(const Place& at, int offset, int level, int slot, int m) {
    T* first = reinterpret_cast<T*>(at.memory + offset) + K * SLOTS * WARPS * SHARED_ROWS * TX;
    return first + ((level * SLOTS + slot) * 2 * RY + m) * TX + at.lane() * C;
}
INLINE int place_outside(const Axis& axis, int radius, int m) {
    return (m < radius ? axis.low + m - radius : axis.length - axis.high + m - radius) - axis.start;
}

// The place in a tile, from `zero` on, of the row or column that one beyond the array equals, and of that one.
INLINE void find_edge(int* edge, const Axis& axis, int place, int zero, int tile) {
    edge[0] = most(-1, least(axis.source(place) - zero, tile));
    edge[1] = most(-1, least(place - zero, tile));
}

// The lane's columns of row `y`, counted from its first one, of the plane dz away: another warp's.
template <int LEVEL, typename T> INLINE Lane<T> beside(const Place& at, int offset, int here, int dz, int y) {
    Lane<T> found;
    const int warp = most(0, least(at.warp() + (y - modulo(y, H)) / H, WARPS - 1));
    read(found.v, shared<T>(at, offset, LEVEL - 1, modulo(here + dz, SLOTS), warp, modulo(y, H)));
    return found;
}
template <typename T> INLINE void write_lane(T* into, const T* from) {
    UNROLL for (int v = 0; v < C / VECTOR; ++v) write(into, from, v);
}

// Write what other warps read of a plane.
template <int LEVEL, typename T> INLINE void share(const T (&patch)[CELLS], const Place& at, int offset, int slot) {
    UNROLL for (int j = 0; j < H; ++j)
        if (j < RY || j >= H - RY) write_lane(shared<T>(at, offset, LEVEL, slot, at.warp(), j), &patch[j * C]);
}
// The same of a tile at an end of the array along y: the warp that has a row writes the rows beyond that equal it.
template <int LEVEL, typename T>
INLINE void share_edge(const T (&patch)[CELLS], const Place& at, int offset, int slot) {
    UNROLL for (int j = 0; j < H; ++j)
        if ((j < RY || j >= H - RY) && !(at.beyond >> j & 1))
            write_lane(shared<T>(at, offset, LEVEL, slot, at.warp(), j), &patch[j * C]);
    UNROLL for (int m = 0; m < 2 * RY; ++m) {
        const int from = at.edges[2 * m] - at.warp() * H, row = at.edges[2 * m + 1];
        if (from < 0 || from >= H) continue;
        T line[C];
        UNROLL for (int j = 0; j < H; ++j)
            UNROLL for (int c = 0; c < C; ++c) line[c] = j == 0 || from == j ? patch[j * C + c] : line[c];
        write_lane(outside<T>(at, offset, LEVEL, slot, m), line);
        if (row >= 0 && row < TY && (row % H < RY || row % H >= H - RY))
            write_lane(shared<T>(at, offset, LEVEL, slot, row / H, row % H), line);
    }
}
// Replace the rows beyond the array of a plane that was shared before the last barrier.
template <int LEVEL, typename T> INLINE void fill_rows(T (&patch)[CELLS], const Place& at, int offset, int slot) {
    UNROLL for (int m = 0; m < 2 * RY; ++m) {
        const int target = at.edges[2 * m + 1] - at.warp() * H;
        if (target < 0 || target >= H) continue;
        T line[C];
        read(line, outside<T>(at, offset, LEVEL, slot, m));
        UNROLL for (int j = 0; j < H; ++j)
            UNROLL for (int c = 0; c < C; ++c) patch[j * C + c] = target == j ? line[c] : patch[j * C + c];
    }
}

// Fill the columns beyond the array, as far as they are read.
template <typename T> INLINE void fill_columns(T (&patch)[CELLS], const Place& at, T constant) {
    UNROLL for (int m = 0; m < 2 * RX; ++m) {
        const int source = at.edges[4 * RY + 2 * m], target = at.edges[4 * RY + 2 * m + 1], from = source / C;
        if (target < 0 || target >= TX) continue;
        bool here[C];
        UNROLL for (int c = 0; c < C; ++c) here[c] = target == at.lane() * C + c;
        UNROLL for (int j = 0; j < H; ++j) {
            const T value = BOUNDARY == CONSTANT ? constant : from_lane(pick(&patch[j * C], source % C), from);
            UNROLL for (int c = 0; c < C; ++c) patch[j * C + c] = here[c] ? value : patch[j * C + c];
        }
    }
}
// Whether a plane is beyond the array, or others beyond it equal it.
INLINE bool at_z_edge(const Place& at) {
    const Axis& z = at.all.z;
    const int place = at.plane + z.start;
    return BOUNDARY != WRAP && RZ > 0 && (place <= z.low + RZ || place >= z.length - z.high);
}
constexpr int FAR = BOUNDARY == MIRROR ? 2 * RZ : 2 * RZ - 1;  // from a plane beyond the array to the one it equals
// Copy a plane to those before the array that equal it. SHARED: also to other warps.
template <int LEVEL, bool SHARED, typename T>
INLINE void fill_planes(T (&ring)[SLOTS][CELLS], const Place& at, int offset, int here) {
    const Axis& z = at.all.z;
    UNROLL for (int m = 1; m <= RZ; ++m) {
        const int place = z.low - m - z.start;
        UNROLL for (int e = 1; e <= FAR; ++e) {
            const int slot = modulo(here - e, SLOTS);
            const bool equal = at.plane - place == e && (FAR == 1 || z.source(place) == at.plane);
            UNROLL for (int c = 0; c < CELLS; ++c) ring[slot][c] = equal ? ring[here][c] : ring[slot][c];
            if constexpr (SHARED) {
                if (!equal) continue;
                if (at.y_edge) share_edge<LEVEL>(ring[here], at, offset, slot);
                else share<LEVEL>(ring[here], at, offset, slot);
            }
        }
    }
}
// Keep a plane of a tile or at a place where cells beyond the array are replaced.
template <int LEVEL, int OFFSET, typename T>
INLINE void keep_edge(T (&ring)[SLOTS][CELLS], T (&patch)[CELLS], const Place& at, int here, T constant) {
    const Axis& z = at.all.z;
    if (at.x_edge) fill_columns(patch, at, constant);
    if (BOUNDARY == CONSTANT) {
        UNROLL for (int j = 0; j < H; ++j)
            if (z.beyond(at.plane) || at.beyond >> j & 1)
                UNROLL for (int c = 0; c < C; ++c) patch[j * C + c] = constant;
    } else if (BOUNDARY != WRAP && at.plane + z.start >= z.length - z.high) {
        const int away = FAR == 1 ? 1 : at.plane - z.source(at.plane);
        UNROLL for (int e = 1; e <= FAR; ++e)
            UNROLL for (int c = 0; c < CELLS; ++c)
                patch[c] = away == e ? ring[modulo(here - e, SLOTS)][c] : patch[c];
    }
    UNROLL for (int c = 0; c < CELLS; ++c) ring[here][c] = patch[c];
    if constexpr (OFFSET >= 0) {
        if (BOUNDARY != CONSTANT && at.y_edge) share_edge<LEVEL>(patch, at, OFFSET, here);
        else share<LEVEL>(patch, at, OFFSET, here);
    }
    if (BOUNDARY != CONSTANT && at_z_edge(at)) fill_planes<LEVEL, (OFFSET >= 0 && LAG > RZ)>(ring, at, OFFSET, here);
}

// Whether conditions on the place make cells near an end of the array differ.
constexpr bool ENDS = LOW_Z + HIGH_Z + LOW_Y + HIGH_Y + LOW_X + HIGH_X > 0;

// Write the lane's own cells.
template <typename T>
INLINE void store(const T (&patch)[CELLS], T* cell, int64 planes, int pitch, int stride, const Place& at) {
    T* first = element(cell + at.plane * planes + at.column * stride, at.row, pitch);
    const int inside = at.column - at.x0, own = at.all.x.own;
    if (VECTOR > 1 && stride == 1 && MARGIN % C == 0 && at.column + C <= own) {
        UNROLL for (int j = 0; j < H; ++j)
            if (at.writes >> j & 1)
                UNROLL for (int c = 0; c < C; c += VECTOR)
                    write_global<VECTOR>(element(first, j, pitch) + c, &patch[j * C + c]);
    } else UNROLL for (int c = 0; c < C; ++c) {
        if (inside + c < MARGIN || inside + c >= TX - MARGIN || at.column + c >= own) continue;
        UNROLL for (int j = 0; j < H; ++j)
            if (at.writes >> j & 1) write_global<1>(element(first, j, pitch) + c * stride, &patch[j * C + c]);
    }
}

// Write the lane's own cells, and those of the array's ends that equal them: these are beyond for all that is computed.
template <typename T>
INLINE void store_filled(T (&patch)[CELLS], T* cell, int64 planes, int pitch, int stride, const Place& at, T constant) {
    const Axis &z = at.all.z, &y = at.all.y, &x = at.all.x;
    if (z.beyond(at.plane)) return;
    if (C > 1 && MARGIN % C == 0 && x.low <= 1 && x.high <= 1 && x.whole() && x.length % C == 0) {
        // The column at an end and the one that it equals are of one lane.
        const bool first = x.low > 0 && at.column == 0, last = x.high > 0 && at.column + C == x.length;
        UNROLL for (int j = 0; j < H; ++j) {
            patch[j * C] = first ? patch[j * C + 1 % C] : patch[j * C];
            patch[j * C + C - 1] = last ? patch[j * C + most(C - 2, 0)] : patch[j * C + C - 1];
        }
    } else if (at.x_edge) fill_columns(patch, at, constant);
    const int place = at.plane + z.start;
    const int before = place == z.low ? z.low : 0, after = place == z.length - 1 - z.high ? z.high : 0;
    const int above = at.lowest ? y.low : 0, below = at.highest ? y.high : 0;
    NO_UNROLL for (int dz = -before; dz <= after; ++dz)
        NO_UNROLL for (int dy = -above; dy <= below; ++dy) {
            Place to = at;
            to.plane += dz;
            to.row += dy;
            to.writes = dy == 0 ? at.writes : dy < 0 ? at.lowest : at.highest;
            store(patch, cell, planes, pitch, stride, to);
        }
}
template <typename T>
INLINE void store_pair(const T (&a)[CELLS], const T (&b)[CELLS], T* cell, int64 planes, int pitch, const Place& at) {
    if (MARGIN % C != 0 || at.column + C > at.all.x.own) {
        store(a, cell, planes, pitch, 2, at);
        store(b, cell + 1, planes, pitch, 2, at);
        return;
    }
    T* first = element(cell + at.plane * planes + at.column * 2, at.row, pitch);
    UNROLL for (int j = 0; j < H; ++j)
        if (at.writes >> j & 1) UNROLL for (int p = 0; p < PIECES<T>; ++p) {
            const Piece<T> piece = join(&a[j * C], &b[j * C], p);
            write_global<PIECE<T>>(element(first, j, pitch) + p * PIECE<T>, piece.item);
        }
}

// The generated text.
template <Where WHERE, int LEVEL>
INLINE void compute(const Planes& planes, int here, const Place& at, Patch& out);

// Ask for a plane of level 0.
template <bool EDGE, int PART, typename T>
INLINE void request(T (&patch)[CELLS], const T* cell, int64 planes, int pitch, int stride, const Place& at, int plane,
                    T constant) {
    const T* from = plane_of<EDGE>(cell, planes, at, plane);
    if (EDGE && BOUNDARY == CONSTANT && from == nullptr) UNROLL for (int c = 0; c < CELLS; ++c) patch[c] = constant;
    else if (EDGE && at.x_edge) UNROLL for (int j = 0; j < H; ++j)
        read_line<true, PART>(&patch[j * C], from, pitch, stride, at, j, constant);
    else UNROLL for (int j = 0; j < H; ++j) read_line<false, PART>(&patch[j * C], from, pitch, stride, at, j, constant);
}
template <bool EDGE> INLINE void request(Planes& planes, int slot, const Place& at, int plane, int last) {
#define X(n, T, constant)                                                                                          \
    request<EDGE, PART##n>(planes.w##n[0][slot], at.all.in##n, at.all.in_planes##n, int(at.all.in_pitch##n), STRIDE##n, at, \
                  least(plane, last - 1 + K * RZ), T(constant));
    PLANES(X)
#undef X
}

template <Where WHERE, int LEVEL> INLINE void levels(Planes& planes, int phase, Place at, int first, int last) {
    if constexpr (LEVEL <= K) {
        constexpr bool EDGE = WHERE != INSIDE;
        at.plane -= LAG;
        const int here = modulo(phase - LEVEL * LAG, SLOTS);
        Patch out;
        compute<WHERE, LEVEL>(planes, here, at, out);
        if constexpr (LEVEL == 1) request<EDGE>(planes, modulo(phase + 1, SLOTS), at, at.plane + LAG + 1, last);
        if constexpr (LEVEL < K) {
#define X(n, T, constant)                                                                                       \
    if constexpr (EDGE && FILLED) {                                                                             \
        keep_edge<LEVEL, SHARED##n>(planes.w##n[LEVEL], out.w##n, at, here, T(constant));                       \
    } else {                                                                                                    \
        UNROLL for (int c = 0; c < CELLS; ++c) planes.w##n[LEVEL][here][c] = out.w##n[c];                       \
        if constexpr (SHARED##n >= 0) share<LEVEL>(out.w##n, at, SHARED##n, here);                              \
    }
            PLANES(X)
#undef X
            if constexpr (EARLY && LEVEL == K - 1) arrive(at.memory);
            levels<WHERE, LEVEL + 1>(planes, phase, at, first, last);
        } else if (at.plane >= first && at.plane < last) {
#define X(n, T, constant)                                                                                           \
    if constexpr (EDGE && ENDS_FILLED)                                                                              \
        store_filled(out.w##n, at.all.out##n, at.all.out_planes##n, int(at.all.out_pitch##n), STRIDE##n, at, T(0)); \
    else store(out.w##n, at.all.out##n, at.all.out_planes##n, int(at.all.out_pitch##n), STRIDE##n, at);
            SINGLES(X)
#undef X
#define X(a, b, T)                                                                                                    \
    if constexpr (EDGE && ENDS_FILLED) {                                                                              \
        store_filled(out.w##a, at.all.out##a, at.all.out_planes##a, int(at.all.out_pitch##a), 2, at, T(0));           \
        store_filled(out.w##b, at.all.out##b, at.all.out_planes##b, int(at.all.out_pitch##b), 2, at, T(0));           \
    } else store_pair(out.w##a, out.w##b, at.all.out##a, at.all.out_planes##a, int(at.all.out_pitch##a), at);
            PAIRS(X)
#undef X
        }
    }
}

template <int LEVEL> INLINE void fill_levels(Planes& planes, int phase, Place at) {
    if constexpr (LEVEL < K) {
        at.plane -= LAG;
        const int slot = modulo(phase - 1 - LEVEL * LAG, SLOTS);
#define X(n, T, constant)                                                                               \
    if constexpr (SHARED##n >= 0) {                                                                     \
        fill_rows<LEVEL>(planes.w##n[LEVEL][slot], at, SHARED##n, slot);                                \
        if constexpr (LAG > RZ) fill_planes<LEVEL, false>(planes.w##n[LEVEL], at, 0, slot);             \
    }
        PLANES(X)
#undef X
        fill_levels<LEVEL + 1>(planes, phase, at);
    }
}

// Take over a plane of level 0, compute a plane of each level, and ask for another, SLOTS times.
template <Where WHERE> INLINE void advance(Planes& planes, const Place& at, int first, int last) {
    UNROLL for (int phase = 0; phase < SLOTS; ++phase) {
        Place now = at;
        now.plane += phase;
        if constexpr (RY > 0) await(at.memory, (now.plane - first + K * RZ) & 1);
#define X(n, T, constant) \
    if constexpr (SHARED##n >= 0) share<0>(planes.w##n[0][phase], now, SHARED##n, phase);
        PLANES(X)
#undef X
        if constexpr (WHERE != INSIDE && RY > 0 && FILLED && BOUNDARY != CONSTANT) {
            if (at.y_edge) {
                Place before = now;
                --before.plane;
                fill_levels<1>(planes, phase, before);
            }
        }
        levels<WHERE, 1>(planes, phase, now, first, last);
        if constexpr (RY > 0 && !EARLY) arrive(at.memory);
    }
}

INLINE void run(const Arguments& all) {
#ifdef __CUDACC_RTC__
    extern __shared__ __align__(16) char memory[];
#else
    char* memory = emulated::shared();
#endif
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int first = int(blockIdx.z) * all.height, last = least(first + all.height, all.z.own);
    const int x0 = first_column(all.x, int(blockIdx.x) * VALID - MARGIN), y0 = int(blockIdx.y) * VALID_Y - MARGIN_Y;
    int* lines = reinterpret_cast<int*>(memory + 16);  // after the barrier
    int* columns = lines + LINES + LINES % 2;
    Place at{all, memory, lines, columns, columns + TX, x0, y0, x0 + lane * C, y0 + warp * H, first - K * RZ, 0, 0, 0, 0};
    const bool written = VECTOR == 1 || MARGIN % C != 0 || (lane * C >= MARGIN && lane * C < TX - MARGIN);
    UNROLL for (int j = 0; j < H; ++j) {
        const int row = warp * H + j;
        const bool beyond = all.y.beyond(y0 + row);
        if (written && row >= MARGIN_Y && row < TY - MARGIN_Y && y0 + row < all.y.own && !(ENDS_FILLED && beyond))
            at.writes |= 1 << j;
        if (beyond) at.beyond |= 1 << j;
        const int place = y0 + row + all.y.start;
        if (ENDS_FILLED && place == all.y.low) at.lowest |= at.writes & 1 << j;
        if (ENDS_FILLED && place == all.y.length - 1 - all.y.high) at.highest |= at.writes & 1 << j;
    }
    at.x_edge = !all.x.inside(x0, x0 + TX);
    at.y_edge = FILLED && (all.y.beyond(y0) || all.y.beyond(y0 + TY - 1));
    for (int i = threadIdx.x; i < LINES; i += LANES * WARPS) at.lines[i] = place_or_never(all.y, y0 - REACH_Y + i);
    for (int i = threadIdx.x; i < TX; i += LANES * WARPS) at.columns[i] = place_or_never(all.x, x0 + i);
    // One loop for both axes would choose between them by index, which keeps all arguments in local memory.
    for (int m = threadIdx.x; FILLED && m < 2 * RY; m += LANES * WARPS)
        find_edge(at.edges + 2 * m, all.y, place_outside(all.y, RY, m), y0, TY);
    for (int m = threadIdx.x; FILLED && m < 2 * RX; m += LANES * WARPS)
        find_edge(at.edges + 4 * RY + 2 * m, all.x, place_outside(all.x, RX, m), x0, TX);
    initialize(memory);
    __syncthreads();
    if constexpr (RY > 0) arrive(memory);
    Planes planes = {};
    request<true>(planes, 0, at, at.plane, last);
    // From `low` to before `high`, all levels' planes and those beside them are in the memory and the array.
    // There, conditions on the place are as between the ends of the array, too.
    const bool edge = at.x_edge || at.y_edge || near_end(all.x, x0 + RX, x0 + TX - RX, LOW_X, HIGH_X) ||
                      near_end(all.y, y0 + RY, y0 + TY - RY, LOW_Y, HIGH_Y);
    // Planes beyond an array whose ends repeat others are not those beside them in memory.
    const bool apart_low = all.z.repeats > 0 && all.z.start == 0;
    const bool apart_high = all.z.repeats > 0 && all.z.start + all.z.own == all.z.length;
    const int in_memory = REACH_Z - (apart_low ? 0 : all.z.before), in_array = FILLED ? all.z.low + RZ + 1 - all.z.start : NEVER;
    const int placed = LOW_Z + HIGH_Z > 0 ? LOW_Z - all.z.start : NEVER;
    const int low = K * LAG + most(in_memory, most(in_array, placed));
    int high = all.z.own + (apart_high ? 0 : all.z.after) - SLOTS - REACH_Z;
    if (FILLED) high = least(high, all.z.length - all.z.high - all.z.start - SLOTS - REACH_Z);
    if (LOW_Z + HIGH_Z > 0) high = least(high, all.z.length - HIGH_Z - all.z.start + LAG - SLOTS + 1);
    NO_UNROLL for (; at.plane < last + K * LAG; at.plane += SLOTS) {
        if (at.plane < low || at.plane >= high || (edge && !ENDS)) advance<EDGES>(planes, at, first, last);
        else if (ENDS && edge) advance<SIDES>(planes, at, first, last);
        else advance<INSIDE>(planes, at, first, last);
    }
}

}  // namespace steps
