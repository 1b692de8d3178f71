// K time steps in one pass over three axes: a block streams through the planes of a tile of 32 * C columns and
// WARPS * H rows.
//
// A lane holds H rows of C columns of the last planes of each time level in registers, as rings of SLOTS
// planes. Its neighbours along x are those of the next lanes, and along y those of the next warps, which it
// reads from shared memory. When plane z of level 0 has come from memory, plane z - k * LAG of level k is
// computed, for all k: what it reads of other warps was written before the last barrier, one a plane. The outer
// MARGIN columns and MARGIN_Y rows of a tile are of no use after K steps: they are another tile's.
//
// Limited by instructions and by the barrier; each cell of a tile is read once and written once for K steps.
#pragma once

namespace steps {

constexpr int CELLS = H * C, TX = LANES * C, TY = WARPS * H;
constexpr int VALID = TX - 2 * MARGIN, MARGIN_Y = K * RY, VALID_Y = TY - 2 * MARGIN_Y;

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

// Where a lane computes: its columns from `column` on, its rows from `row` on, and a plane. line: the places in
// memory of its rows. x_edge, y_edge: whether the tile reads cells beyond the array or the memory; in: whether
// the lane's columns are none of them. EDGE, below: whether there is any such cell, along any axis.
struct Place {
    const Arguments& all;
    char* memory;
    int x0, y0, column, row, plane;
    bool x_edge, y_edge, in;
    int line[H];

    INLINE_MEMBER bool z_edge() const {
        return BOUNDARY != WRAP && (all.z.beyond(plane - RZ) || all.z.beyond(plane + RZ));
    }
};

// The lane's columns of one row in memory, or what is beyond the array. line: the row's place in memory.
template <bool EDGE, typename T>
INLINE void read_line(T* into, const T* cell, int64 planes, int64 rows, int stride, const Place& at, int plane,
                      int row, int line, T constant) {
    const Axis& x = at.all.x;
    const bool outside = EDGE && BOUNDARY == CONSTANT && (at.all.z.beyond(plane) || at.all.y.beyond(row));
    const T* first = cell + (EDGE ? at.all.z.memory(plane) : at.all.z.clamped(plane)) * planes;
    const int offset = line * int(rows);
    if (outside) UNROLL for (int c = 0; c < C; ++c) into[c] = constant;
    else if (!EDGE || at.in) {
        if constexpr (VECTOR > 1) read(into, first + at.column + offset);
        else UNROLL for (int c = 0; c < C; ++c) into[c] = first[int64(at.column + c) * stride + offset];
    } else UNROLL for (int c = 0; c < C; ++c) {
        const int column = opaque(at.column) + c;
        const bool beyond = BOUNDARY == CONSTANT && x.beyond(column);
        into[c] = beyond ? constant : first[int64(x.memory(column)) * stride + offset];
    }
}
template <bool EDGE, typename T>
INLINE Lane<T> fixed(const T* cell, int64 planes, int64 rows, int stride, const Place& at, int dz, int y, T constant) {
    Lane<T> found;
    const int row = at.row + y;
    const int line = 0 <= y && y < H ? at.line[modulo(y, H)] : EDGE ? at.all.y.memory(row) : at.all.y.clamped(row);
    read_line<EDGE>(found.v, cell, planes, rows, stride, at, at.plane + dz, row, line, constant);
    return found;
}

// The place in shared memory of the lane's columns of a row of the tile, in a plane of one level.
template <typename T> INLINE T* shared(const Place& at, int offset, int level, int slot, int row) {
    T* first = reinterpret_cast<T*>(at.memory + offset);
    return first + ((level * KEPT + slot) * TY + row) * TX + int(threadIdx.x % LANES) * C;
}
// The same columns of row `y`, counted from the lane's first one, of the plane dz away: another warp's.
template <bool EDGE, int LEVEL, typename T>
INLINE Lane<T> beside(const Place& at, int offset, int here, int dz, int y, T constant) {
    Lane<T> found;
    int slot = modulo(here + dz, KEPT);
    if (EDGE && LEVEL > 1 && dz != 0 && at.all.z.beyond(at.plane + dz)) {
        if (BOUNDARY == CONSTANT) {
            UNROLL for (int c = 0; c < C; ++c) found.v[c] = constant;
            return found;
        }
        slot = modulo(here + at.all.z.source(at.plane + dz) - at.plane, KEPT);
    }
    const int row = most(0, least(at.row - at.y0 + y, TY - 1));
    read(found.v, shared<T>(at, offset, LEVEL - 1, slot, row));
    return found;
}

template <bool EDGE, typename T>
INLINE void share(const T (&patch)[CELLS], const Place& at, int offset, int level, int slot) {
    UNROLL for (int j = 0; j < H; ++j) {
        if (!(j < RY || j >= H - RY || (EDGE && at.y_edge))) continue;
        T* target = shared<T>(at, offset, level, slot, at.row - at.y0 + j);
        UNROLL for (int v = 0; v < C / VECTOR; ++v) write(target, &patch[j * C], v);
    }
}
// Fill the rows beyond the array, as far as they are read, from those that all warps have shared.
template <typename T>
INLINE void fill_shared(T (&patch)[CELLS], const Place& at, int offset, int level, int slot, T constant) {
    const Axis& y = at.all.y;
    UNROLL for (int j = 0; j < H; ++j) {
        const int row = at.row + j, place = row + y.start;
        if (!y.beyond(row) || place < -RY || place >= y.length + RY) continue;
        if (BOUNDARY == CONSTANT) {
            UNROLL for (int c = 0; c < C; ++c) patch[j * C + c] = constant;
        } else {
            const int from = y.source(row) - at.y0;
            if (from < 0 || from >= TY) continue;
            read(&patch[j * C], shared<T>(at, offset, level, slot, from));
        }
        T* target = shared<T>(at, offset, level, slot, row - at.y0);
        UNROLL for (int v = 0; v < C / VECTOR; ++v) write(target, &patch[j * C], v);
    }
}

template <typename T>
INLINE void store(const T (&patch)[CELLS], T* cell, int64 planes, int64 rows, int stride, const Place& at) {
    UNROLL for (int j = 0; j < H; ++j) {
        const int row = at.row + j, place = row - at.y0;
        if (place < MARGIN_Y || place >= TY - MARGIN_Y || row >= at.all.y.own) continue;
        T* first = cell + at.plane * planes + row * int(rows);
        UNROLL for (int v = 0; v < C / VECTOR; ++v) {
            const int column = at.column + v * VECTOR, inside = column - at.x0;
            if (inside < MARGIN || inside >= TX - MARGIN || column >= at.all.x.own) continue;
            if (VECTOR > 1 && column + VECTOR <= at.all.x.own) {
                write(first + at.column, &patch[j * C], v);
            } else {
                UNROLL for (int i = 0; i < VECTOR; ++i)
                    if (column + i < at.all.x.own) first[int64(column + i) * stride] = patch[j * C + v * VECTOR + i];
            }
        }
    }
}

template <bool EDGE, int LEVEL>
INLINE void compute(const Planes& planes, int here, const Place& at, Patch& out);  // the generated text

template <bool EDGE, int LEVEL>
INLINE void levels(Planes& planes, int phase, Place at, int first, int last) {
    if constexpr (LEVEL <= K) {
        at.plane -= LAG;
        const int here = modulo(phase - LEVEL * LAG, SLOTS);
        Patch out;
        if constexpr (EDGE && LEVEL > 1 && RZ > 0) {
            if (at.z_edge() && !at.all.z.beyond(at.plane)) {
#define X(n, T, constant) fill_ring<RZ>(planes.w##n[LEVEL - 1], at.all.z, at.plane, here, T(constant));
                PLANES(X)
#undef X
            }
        }
        compute<EDGE, LEVEL>(planes, here, at, out);
        if constexpr (LEVEL < K) {
#define X(n, T, constant)                                                                              \
    if (EDGE && RX > 0 && BOUNDARY != WRAP && at.x_edge) {                                                   \
        UNROLL for (int j = 0; j < H; ++j) fill_columns(&out.w##n[j * C], at.all.x, at.x0, T(constant)); \
    }                                                                                                  \
    UNROLL for (int c = 0; c < CELLS; ++c) planes.w##n[LEVEL][here][c] = out.w##n[c];                  \
    if constexpr (SHARED##n >= 0) share<EDGE>(out.w##n, at, SHARED##n, LEVEL, here % KEPT);
            PLANES(X)
#undef X
            levels<EDGE, LEVEL + 1>(planes, phase, at, first, last);
        } else if (at.plane >= first && at.plane < last) {
#define X(n, T, constant) \
    store(out.w##n, at.all.out##n, at.all.out_planes##n, at.all.out_pitch##n, STRIDE##n, at);
            PLANES(X)
#undef X
        }
    }
}

template <bool EDGE> INLINE void request(Patch& into, const Place& at, int plane) {
#define X(n, T, constant)                                                                                  \
    UNROLL for (int j = 0; j < H; ++j)                                                                     \
        read_line<EDGE>(&into.w##n[j * C], at.all.in##n, at.all.in_planes##n, at.all.in_pitch##n, STRIDE##n, at, \
                        plane, at.row + j, at.line[j], T(constant));
    PLANES(X)
#undef X
}

// Take over a plane of level 0, ask for another, and compute a plane of each level, SLOTS times.
template <bool EDGE> INLINE void advance(Planes& planes, Patch (&ahead)[AHEAD], const Place& at, int first, int last) {
    UNROLL for (int phase = 0; phase < SLOTS; ++phase) {
        Place now = at;
        now.plane += phase;
#define X(n, T, constant)                                                                              \
    UNROLL for (int c = 0; c < CELLS; ++c) {                                                           \
        planes.w##n[0][phase][c] = ahead[0].w##n[c];                                                   \
        UNROLL for (int p = 1; p < AHEAD; ++p) ahead[p - 1].w##n[c] = ahead[p].w##n[c];                \
    }                                                                                                  \
    if constexpr (SHARED##n >= 0) share<EDGE>(planes.w##n[0][phase], now, SHARED##n, 0, phase % KEPT);
        PLANES(X)
#undef X
        request<EDGE>(ahead[AHEAD - 1], now, least(now.plane + AHEAD, last - 1 + K * RZ));
        levels<EDGE, 1>(planes, phase, now, first, last);
        if constexpr (RY > 0) {
            __syncthreads();
            if (EDGE && at.y_edge) {
                UNROLL for (int k = 1; k < K; ++k) {
                    const int slot = modulo(phase - k * LAG, SLOTS);
#define X(n, T, constant)            \
    if constexpr (SHARED##n >= 0)    \
        fill_shared(planes.w##n[k][slot], now, SHARED##n, k, slot % KEPT, T(constant));
                    PLANES(X)
#undef X
                }
                __syncthreads();
            }
        }
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
    const int x0 = int(blockIdx.x) * VALID - MARGIN, y0 = int(blockIdx.y) * VALID_Y - MARGIN_Y;
    Place at{all, memory, x0, y0, x0 + lane * C, y0 + warp * H, first - K * RZ};
    at.x_edge = !all.x.inside(x0, x0 + TX);
    at.y_edge = BOUNDARY != WRAP && (all.y.beyond(y0) || all.y.beyond(y0 + TY - 1));
    at.in = !at.x_edge || all.x.inside(at.column, at.column + C);
    const bool edge = at.x_edge || !all.y.inside(y0, y0 + TY);
    UNROLL for (int j = 0; j < H; ++j) at.line[j] = all.y.memory(at.row + j);
    Planes planes = {};
    Patch ahead[AHEAD];
    UNROLL for (int p = 0; p < AHEAD; ++p) request<true>(ahead[p], at, at.plane + p);
    // Planes that read none beyond the array take the code without edges.
    const int low = all.z.low(), high = all.z.high(), most_behind = K * LAG + most(RZ, REACH_Z);
    const int from = low == NEVER ? at.plane : low + most_behind;
    const int until = high == NEVER ? last + K * LAG : high - SLOTS - most(AHEAD, REACH_Z);
    NO_UNROLL for (; at.plane < last + K * LAG; at.plane += SLOTS) {
        if (edge || at.plane < from || at.plane > until) advance<true>(planes, ahead, at, first, last);
        else advance<false>(planes, ahead, at, first, last);
    }
}

}  // namespace steps
