// What the kernels of several time steps share: places along an axis, boundaries, and values of other lanes.
//
// The generated text before this file defines, beside the program's dtypes:
//   AXES    of the array
//   K       time steps, C columns of a lane, RY and RX cells read on each side along each axis
//   LOW_Y, HIGH_Y, LOW_X, HIGH_X  cells from each end for which conditions on the place differ from those between
//   FAR_X     columns before the end of the array that those near it read; 0 if no further than others
//   BOUNDARY  one of the kinds below; PLANES(X) calls X(number, type, constant) for each plane of the state,
//             STRIDEnumber is the elements from one of its cells to the next, PARTnumber which component it is
//   PAIRS(X)  calls X(number, number, type) for two planes whose elements are read and written together; SINGLES(X)
//             calls X(number, type, constant) for each of the others
#pragma once

#ifdef __CUDACC_RTC__
#define INLINE_MEMBER __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#else
#define INLINE_MEMBER inline __attribute__((always_inline))
#define UNROLL
#define NO_UNROLL
#endif

#define KERNEL(NAME, ...) \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) NAME(__VA_ARGS__)

namespace steps {

// NONE: no cell beyond the array decides a value: conditions on the place choose others at its ends.
enum Boundary { REFLECT, MIRROR, NEAREST, WRAP, CONSTANT, NONE };
constexpr bool FILLED = BOUNDARY != WRAP && BOUNDARY != NONE;  // whether cells beyond the array are copies of others
constexpr int LANES = 32, NEVER = -2147483647 - 1;

INLINE int least(int a, int b) { return a < b ? a : b; }
INLINE int most(int a, int b) { return a > b ? a : b; }
INLINE constexpr int modulo(int a, int n) { return (a % n + n) % n; }

// Which text: of tiles inside the array, of those at its ends along x (over three axes, along x and y), and of any.
enum Where { INSIDE, SIDES, EDGES };

// One axis of this rank's part of the array. own: its cells. start: index of the first one in the array of
// `length` cells. before, after: cells that are valid in memory beside the own ones. repeats: how many of the last
// cells of the array equal its first ones, if the boundary wraps around: its period is shorter by them. low, high: how
// many cells at each end equal the one beside them, if the boundary is the nearest cell: they are beyond the others.
struct Axis {
    int own, start, length, before, after, repeats, low, high;

    INLINE_MEMBER bool whole() const { return own == length; }
    // The cell of the array, counted like `place`, that a place within a few cells of the array copies.
    INLINE_MEMBER int source(int place) const {
        const int at = place + start;
        int cell = at;
        if (!FILLED || (at >= low && at < length - high)) return place;
        if (BOUNDARY == NEAREST || length == 1) cell = at < low ? low : length - 1 - high;
        else if (BOUNDARY == REFLECT) cell = at < 0 ? -1 - at : 2 * length - 1 - at;
        else if (BOUNDARY == MIRROR) {
            cell = at < 0 ? -at : 2 * length - 2 - at;
            if (cell == length) cell = length - 2;  // as many cells beyond as the array has
            if (cell == -1) cell = 1;
        }
        return cell - start;
    }
    INLINE_MEMBER bool beyond(int place) const {
        return BOUNDARY != WRAP && (place + start < low || place + start >= length - high);
    }
    // The place in memory of the cell that any place copies; any valid place for those that are of no use.
    INLINE_MEMBER int memory(int place) const {
        if (BOUNDARY == WRAP && whole()) {
            if (repeats > 0 && place >= 0 && place < length) return place;
            const int rest = place % (length - repeats);
            return rest < 0 ? rest + length - repeats : rest;
        }
        if (repeats > 0) place += place + start < 0 ? -repeats : place + start >= length ? repeats : 0;
        return clamped(source(place));
    }
    // The position in the array of the cell at a place, or of the one on the other side that it copies.
    INLINE_MEMBER int position(int place) const {
        const int at = place + start;
        return BOUNDARY == WRAP && (at < 0 || at >= length) ? modulo(at, length) : at;
    }
    INLINE_MEMBER int clamped(int place) const { return most(-before, least(place, own + after - 1)); }
    // Whether the places from `first` to before `last` are cells of the array and valid in memory.
    INLINE_MEMBER bool inside(int first, int last) const {
        if (repeats > 0 && (first + start < 0 || last + start > length)) return false;
        return first >= -before && last <= own + after && !beyond(first) && !beyond(last - 1);
    }
};

// Whether one of the places from `first` to before `last` is among the cells near an end, for which conditions on the
// place differ from those between: `low` and `high` of them.
INLINE bool near_end(const Axis& axis, int first, int last, int low, int high) {
    return low + high > 0 && (first + axis.start < low || last + axis.start > axis.length - high);
}
// The first column of a tile that would begin at another. The one at the end of the array has all columns that those
// near the end read.
INLINE int first_column(const Axis& x, int usual) {
    return FAR_X > 0 ? least(usual, (x.length - x.start - FAR_X) & -C) : usual;
}

// The same value, which the compiler does not know: what depends on it is not kept between rows.
INLINE int opaque(int value) {
#ifdef __CUDACC_RTC__
    asm volatile("" : "+r"(value));
#endif
    return value;
}

// A value of another lane of the warp.
template <typename T> INLINE T from_lane(T value, int lane) {
#ifdef __CUDACC_RTC__
    if constexpr (sizeof(T) == 8 || numpy::IsSame<T, float>::value || numpy::IsSame<T, int>::value)
        return __shfl_sync(~0u, value, lane);
    else if constexpr (numpy::Traits<T>::half)
        return numpy::bits<T>(uint16(__shfl_sync(~0u, int(numpy::bits<uint16>(value)), lane)));
    else return static_cast<T>(__shfl_sync(~0u, int(value), lane));
#else
    return emulated::from_lane(value, lane);
#endif
}
template <typename T> INLINE T from_left(T value) {
#ifdef __CUDACC_RTC__
    if constexpr (sizeof(T) == 8 || numpy::IsSame<T, float>::value || numpy::IsSame<T, int>::value)
        return __shfl_up_sync(~0u, value, 1);
    else if constexpr (numpy::Traits<T>::half)
        return numpy::bits<T>(uint16(__shfl_up_sync(~0u, int(numpy::bits<uint16>(value)), 1)));
    else return static_cast<T>(__shfl_up_sync(~0u, int(value), 1));
#else
    return emulated::from_lane(value, most(int(threadIdx.x % LANES) - 1, 0));
#endif
}
template <typename T> INLINE T from_right(T value) {
#ifdef __CUDACC_RTC__
    if constexpr (sizeof(T) == 8 || numpy::IsSame<T, float>::value || numpy::IsSame<T, int>::value)
        return __shfl_down_sync(~0u, value, 1);
    else if constexpr (numpy::Traits<T>::half)
        return numpy::bits<T>(uint16(__shfl_down_sync(~0u, int(numpy::bits<uint16>(value)), 1)));
    else return static_cast<T>(__shfl_down_sync(~0u, int(value), 1));
#else
    return emulated::from_lane(value, least(int(threadIdx.x % LANES) + 1, LANES - 1));
#endif
}

INLINE bool in_any_lane(bool value) {
#ifdef __CUDACC_RTC__
    return __any_sync(~0u, value);
#else
    bool found = false;
    for (int lane = 0; lane < LANES; ++lane) found |= emulated::from_lane(value, lane);
    return found;
#endif
}

template <typename T> INLINE T pick(const T* row, int slot) {
    T value = row[0];
    UNROLL for (int c = 1; c < C; ++c) value = slot == c ? row[c] : value;
    return value;
}

// C columns side by side, of one lane; and as many of them as one access takes.
template <typename T> struct Lane { T v[C]; };
template <typename T> struct alignas(sizeof(T) * VECTOR) Vector { T item[VECTOR]; };
template <typename T> INLINE void read(T* into, const T* from) {
    UNROLL for (int v = 0; v < C / VECTOR; ++v) {
        const Vector<T> one = reinterpret_cast<const Vector<T>*>(from)[v];
        UNROLL for (int i = 0; i < VECTOR; ++i) into[v * VECTOR + i] = one.item[i];
    }
}
template <typename T> INLINE void write(T* into, const T* from, int v) {
    Vector<T> one;
    UNROLL for (int i = 0; i < VECTOR; ++i) one.item[i] = from[v * VECTOR + i];
    reinterpret_cast<Vector<T>*>(into)[v] = one;
}

// The same of cells that are pairs of components side by side, as complex numbers: pieces of vectors of cells, of 16
// bytes at most, in which the components take turns.
template <typename T> constexpr int PIECE = 2 * VECTOR * sizeof(T) <= 16 ? 2 * VECTOR : 16 / sizeof(T);
template <typename T> constexpr int PIECES = 2 * C / PIECE<T>;
template <typename T> struct alignas(PIECE<T> * sizeof(T)) Piece { T item[PIECE<T>]; };
template <typename T> INLINE void part(T* a, T* b, const Piece<T>& piece, int p) {
    UNROLL for (int i = 0; i < PIECE<T>; ++i) ((i % 2 ? b : a)[(p * PIECE<T> + i) / 2]) = piece.item[i];
}
template <typename T> INLINE Piece<T> join(const T* a, const T* b, int p) {
    Piece<T> piece;
    UNROLL for (int i = 0; i < PIECE<T>; ++i) piece.item[i] = (i % 2 ? b : a)[(p * PIECE<T> + i) / 2];
    return piece;
}
// Read component PART of a lane's pairs. Reads of both parts become one.
template <int PART, typename T> INLINE void read_part(T* into, const T* first) {
    T parts[2][C];
    UNROLL for (int p = 0; p < PIECES<T>; ++p)
        part(parts[0], parts[1], reinterpret_cast<const Piece<T>*>(first - PART)[p], p);
    UNROLL for (int c = 0; c < C; ++c) into[c] = parts[PART][c];
}

// Replace the rows (or planes) beyond the array, of those around `place` in a ring whose slot `here` holds it.
template <int R, int SIZE, int CELLS, typename T>
INLINE void fill_ring(T (&ring)[SIZE][CELLS], const Axis& axis, int place, int here, T constant) {
    UNROLL for (int d = -R; d <= R; ++d) {
        if (d == 0 || !axis.beyond(place + d)) continue;
        T(&target)[CELLS] = ring[modulo(here + d, SIZE)];
        if (BOUNDARY == CONSTANT) {
            UNROLL for (int c = 0; c < CELLS; ++c) target[c] = constant;
            continue;
        }
        const int from = axis.source(place + d) - place;
        UNROLL for (int e = -R; e <= R; ++e)
            if (e != d && from == e)
                UNROLL for (int c = 0; c < CELLS; ++c) target[c] = ring[modulo(here + e, SIZE)][c];
    }
}

}  // namespace steps
