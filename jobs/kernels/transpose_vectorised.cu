// Transpose with 16 bytes an access, to and from global memory and shared memory alike.
//
// Limited by memory: as many bytes are read and written as by a copy, each access of a warp covers whole
// segments of 256 bytes, and all loads of a thread are under way before it needs the first. What it lacks to a
// copy is the order of addresses: a tile lies in as many DRAM rows and pages as it has rows.
//
// A thread takes a cell: V rows of V elements, V * sizeof(T) = 16 bytes. It transposes the cell in registers,
// and puts the cell's columns, now 16 bytes each, into a tile that is already transposed. A row of the tile is a
// multiple of all 32 banks long; that the vectors of a warp still go to different banks, when they are written
// along a column and when they are read along a row, is the swizzle's doing: vector i of a row that belongs to
// the cells of column j lies at i ^ j.
//
// Tiles are taken in bands of GROUP, downwards, then across: the blocks that run at a time make a square rather
// than a stripe, so that neither side's addresses are spread over more pages than need be. GROUP 1: row by row.
// GROUP 0: along diagonals.
//
// Grid: 1-D, ceil(rows / (DOWN * V)) * ceil(columns / (ACROSS * V)). Block: 256 threads. Arguments: input, output,
// int64 rows, int64 columns. V > 1 needs both addresses, rows and columns to be multiples of V elements.

constexpr int THREADS = 256;

// What moves so many bytes in one instruction.
template <int BYTES> struct Access;
template <> struct Access<2> { using type = unsigned short; };
template <> struct Access<4> { using type = unsigned int; };
template <> struct Access<8> { using type = uint2; };
template <> struct Access<16> { using type = uint4; };

template <typename T, int V> struct alignas(sizeof(T) * V) Vector {
    using Whole = typename Access<sizeof(T) * V>::type;
    T element[V];

    // STREAM: marked as not to be needed again.
    template <bool STREAM> __device__ __forceinline__ void load(const T* source) {
        const Whole* whole = reinterpret_cast<const Whole*>(source);
        *reinterpret_cast<Whole*>(element) = STREAM ? __ldcs(whole) : *whole;
    }
    template <bool STREAM> __device__ __forceinline__ void store(T* target) const {
        const Whole whole = *reinterpret_cast<const Whole*>(element);
        if (STREAM) {
            __stcs(reinterpret_cast<Whole*>(target), whole);
        } else {
            *reinterpret_cast<Whole*>(target) = whole;
        }
    }
};

struct Tile {
    unsigned y, x;
};

// The tile of block `number`, of `down` rows of `across` tiles.
template <int GROUP> __device__ __forceinline__ Tile ordered(unsigned number, unsigned down, unsigned across) {
    if constexpr (GROUP == 0) {
        const unsigned y = number / across;
        return {y, (number % across + y) % across};
    } else {
        const unsigned band = GROUP * across, top = number / band * GROUP, inside = number % band;
        const unsigned height = min(static_cast<unsigned>(GROUP), down - top);
        return {top + inside % height, inside / height};
    }
}

// input: (rows, columns), output: (columns, rows), both C-contiguous. A tile is DOWN x ACROSS cells of V x V
// elements, DOWN and ACROSS powers of two.
template <typename T, int V, int DOWN, int ACROSS, int GROUP, bool STREAM>
__global__ void __launch_bounds__(THREADS)
    transpose_vectorised(const T* __restrict__ input, T* __restrict__ output, long long rows, long long columns) {
    constexpr int CELLS = DOWN * ACROSS / THREADS;  // of a thread
    __shared__ Vector<T, V> tile[ACROSS * V][DOWN];

    const unsigned down = (rows + DOWN * V - 1) / (DOWN * V), across = (columns + ACROSS * V - 1) / (ACROSS * V);
    const Tile at = ordered<GROUP>(blockIdx.x, down, across);
    const long long top = static_cast<long long>(at.y) * DOWN * V, left = static_cast<long long>(at.x) * ACROSS * V;
    // Where V divides both, no cell is half inside.
    const int height = min(rows - top, static_cast<long long>(DOWN * V)) / V;
    const int width = min(columns - left, static_cast<long long>(ACROSS * V)) / V;
    input += top * columns + left;
    output += left * rows + top;

    Vector<T, V> cell[CELLS][V];
#pragma unroll
    for (int n = 0; n < CELLS; ++n) {
        const int i = (threadIdx.x + n * THREADS) / ACROSS, j = (threadIdx.x + n * THREADS) % ACROSS;
        if (i < height && j < width) {
#pragma unroll
            for (int k = 0; k < V; ++k) cell[n][k].template load<STREAM>(input + (i * V + k) * columns + j * V);
        }
    }
#pragma unroll
    for (int n = 0; n < CELLS; ++n) {
        const int i = (threadIdx.x + n * THREADS) / ACROSS, j = (threadIdx.x + n * THREADS) % ACROSS;
#pragma unroll
        for (int k = 0; k < V; ++k) {
            Vector<T, V> column;
#pragma unroll
            for (int l = 0; l < V; ++l) column.element[l] = cell[n][l].element[k];
            tile[j * V + k][i ^ j % DOWN] = column;
        }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < CELLS * V; ++n) {
        const int row = (threadIdx.x + n * THREADS) / DOWN, i = (threadIdx.x + n * THREADS) % DOWN;
        if (i < height && row < width * V) {
            tile[row][i ^ row / V % DOWN].template store<STREAM>(output + row * rows + i * V);
        }
    }
}
