// Planes of an input in shared memory, through which a block of threads marches; for CUDA (NVRTC), and for a host
// that runs the threads of a block in turns.
//
// Limited by memory: each plane of the block's tile is read once, with the cells beside the tile that its threads
// need, by asynchronous copies of 16 bytes that hold no registers while they are under way. The neighbours of a cell
// come from shared memory in vectors; what the next turn needs again stays in registers.
#pragma once

#ifdef __CUDACC_RTC__
#define MEMBER __device__ __forceinline__
extern __shared__ __align__(16) char shared_memory[];
#else
#define MEMBER inline __attribute__((always_inline))
#define shared_memory emulated::shared()
#endif

namespace planes {

// COUNT elements that are read at once.
template <typename T, int COUNT> struct alignas(sizeof(T) * COUNT) Vector {
    T value[COUNT];
};

// Read elements of shared memory that begin at a multiple of their size.
template <int COUNT, typename T> INLINE Vector<T, COUNT> read(const T* from) {
    return *reinterpret_cast<const Vector<T, COUNT>*>(from);
}

#ifdef __CUDACC_RTC__
template <int BYTES> struct Words {
    typedef int2 type;
};
template <> struct Words<16> {
    typedef int4 type;
};
#endif

// Read elements of global memory: at once if they begin at a multiple of their size.
template <int COUNT, typename T> INLINE Vector<T, COUNT> load(const T* from, bool aligned) {
#ifdef __CUDACC_RTC__
    constexpr int BYTES = sizeof(T) * COUNT;
    if constexpr (BYTES == 8 || BYTES == 16) {
        if (aligned) {
            typedef typename Words<BYTES>::type Word;
            const Word words = __ldg(reinterpret_cast<const Word*>(from));
            return *reinterpret_cast<const Vector<T, COUNT>*>(&words);
        }
    }
#endif
    Vector<T, COUNT> made;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) made.value[i] = __ldg(from + i);
    return made;
}

// Write a row in vectors of up to 16 bytes, which begin at multiples of that and are not read soon.
template <typename T, int COUNT> INLINE void stream_vectors(T* to, const T (&value)[COUNT]) {
    constexpr int BYTES = vector_bytes(COUNT * sizeof(T)), EACH = BYTES / sizeof(T);
#pragma unroll
    for (int i = 0; i < COUNT; i += EACH) {
        Vector<T, EACH> vector;
#pragma unroll
        for (int j = 0; j < EACH; ++j) vector.value[j] = value[i + j];
#ifdef __CUDACC_RTC__
        if constexpr (BYTES >= 8) {
            typedef typename Words<BYTES>::type Word;
            __stcs(reinterpret_cast<Word*>(to + i), *reinterpret_cast<const Word*>(&vector));
            continue;
        }
#endif
        *reinterpret_cast<Vector<T, EACH>*>(to + i) = vector;
    }
}

// Write those cells of a row that have a bit, the first of which is bit FIRST.
template <int FIRST, typename T, int COUNT> INLINE void store_kept(T* to, const T (&value)[COUNT], uint32 kept) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        if (kept >> (FIRST + i) & 1) to[i] = value[i];
}

// SLOTS planes of a tile of ROWS x COLUMNS cells, with as many cells beside it; below 0: without so many of its own,
// which need not be in memory. `chunks` of 16 bytes are copied by
// THREADS threads, each the same ones of every plane.
template <typename T, typename P, int ROWS, int COLUMNS, int ABOVE, int BELOW, int LEFT, int RIGHT, int SLOTS, int THREADS>
struct Ring {
    static constexpr int EACH = 16 / sizeof(T), BEFORE = LEFT > 0 ? (LEFT + EACH - 1) / EACH * EACH : 0;
    static constexpr int WIDTH = BEFORE + COLUMNS + (RIGHT > 0 ? (RIGHT + EACH - 1) / EACH * EACH : 0);
    static constexpr int SIZE = WIDTH * (ABOVE + ROWS + BELOW), BYTES = SIZE * SLOTS * sizeof(T);
    static constexpr int CHUNKS = SIZE / EACH, TURNS = (CHUNKS + THREADS - 1) / THREADS;
    T* memory;
    const T* next;     // the corner of the next plane to copy, with the cells beside the tile
    P first[TURNS];    // where this thread's chunks begin in a plane
    bool whole[TURNS];  // whether a chunk is 16 bytes of memory at a multiple of that

    // The column of the tile that a chunk begins at.
    static MEMBER int column_of(int chunk) { return chunk % (WIDTH / EACH) * EACH - BEFORE; }

    // plane: where the tile begins in the first plane. pitch, across: elements from a row, and plane, to the next.
    // column: of the tile's first cell. own: returns the column that one equals: another if it is not in memory.
    template <typename C, typename F>
    MEMBER void open(char* at, const T* plane, P pitch, P across, C column, const F& own) {
        memory = reinterpret_cast<T*>(at);
        next = plane - int64(pitch) * ABOVE - BEFORE;
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            const int chunk = turn * THREADS + threadIdx.x;
            const C begin = column + column_of(chunk), end = begin + EACH - 1;
            first[turn] = chunk / (WIDTH / EACH) * pitch + (column_of(chunk) + BEFORE);
            const uint64 bytes = reinterpret_cast<uint64>(next + first[turn]) | uint64(across) * sizeof(T);
            whole[turn] = bytes % 16 == 0 && own(begin) == begin && own(end) == end;
        }
    }

    // Begin to copy the next plane to a slot.
    template <typename C, typename F> MEMBER void fill(int slot, P across, C column, const F& own) {
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            const int chunk = turn * THREADS + threadIdx.x;
            if (CHUNKS % THREADS != 0 && turn == TURNS - 1 && chunk >= CHUNKS) break;
            if constexpr (LEFT <= -EACH || RIGHT <= -EACH)
                if (column_of(chunk) + EACH <= -LEFT || column_of(chunk) >= COLUMNS + RIGHT) continue;
            T* const to = memory + slot * SIZE + chunk * EACH;
            if (whole[turn]) copy_async<16>(to, next + first[turn]);
            else
#pragma unroll 1  // else what it computes for each element would stay in registers
                for (int i = 0; i < EACH; ++i) {
                    const int beside = column_of(chunk) + i;
                    if (beside < -LEFT || beside >= COLUMNS + RIGHT) continue;
                    const C place = column + beside;
                    copy_async<sizeof(T)>(to + i, next + first[turn] + (own(place) - place) + i);
                }
        }
        next += across;
    }
};

}  // namespace planes
