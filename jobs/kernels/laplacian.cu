// The 3 x 3 Laplacian: eight neighbours minus eight times the centre.
//
// Limited by memory: each element is read once and written once, and a dozen operations on it cost
// nothing beside that. (Elements of one or two bytes are limited by the instructions that load
// them.) Each thread makes ROWS x COLUMNS results: all loads of a thread are under way at once,
// which hides their latency, a row is summed once for the three results that use it, and 8 bytes
// are stored at a time. Neighbours come out of the caches: the L1 along a row, the L2 for the two
// rows that a tile shares with the next. Rows of a padded block begin at any multiple of the
// itemsize, hence loads of one element, which a warp coalesces.
//
// Order of sums, for CPU and GPU alike: (left + centre) + right along a row, (top + middle) +
// bottom of these, minus 9 * centre.

#include "common.cuh"

constexpr int ROWS = 8;

// input: (rows + 2, width + 2 * step), output: (rows, width), `target_pitch` elements from one row to
// the next; step: elements from a pixel to the next in its row, its number of channels; STEP: the same
// where known, else 0. A block of threads makes ROWS rows of blockDim.x * COLUMNS results; `tiles`
// blocks make a row of blocks. COLUMNS divides target_pitch and is at most width. `shift`: the results
// by which a row of output begins after a multiple of COLUMNS results in memory, so that all threads but
// those at a row's ends store COLUMNS results at once.
template <typename T, typename A, typename R, int COLUMNS, int STEP>
__global__ void laplacian(const T* __restrict__ input, R* __restrict__ output, long long rows, long long width,
                          long long step, long long tiles, long long target_pitch, long long shift) {
    if (STEP) step = STEP;
    long long x = (blockIdx.x % tiles * blockDim.x + threadIdx.x) * COLUMNS - shift;
    const long long y = blockIdx.x / tiles * ROWS;
    if (x >= width) return;
    // At a row's ends some results are made twice, by two threads, with the same bits.
    const bool whole = x >= 0 && x + COLUMNS <= width;
    if (!whole) x = x < 0 ? 0 : width - COLUMNS;
    const long long pitch = width + 2 * step;
    input += y * pitch + x;
    output += y * target_pitch + x;

    A across[ROWS + 2][COLUMNS], centre[ROWS + 2][COLUMNS];
#pragma unroll
    for (int i = 0; i < ROWS + 2; ++i) {
        const T* row = input + (y + i < rows + 2 ? i : rows + 1 - y) * pitch;
        if constexpr (STEP > 0) {
            A element[COLUMNS + 2 * STEP];
#pragma unroll
            for (int j = 0; j < COLUMNS + 2 * STEP; ++j) element[j] = widen<A>(row[j]);
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                centre[i][j] = element[j + STEP];
                across[i][j] = (element[j] + centre[i][j]) + element[j + 2 * STEP];
            }
        } else {
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                centre[i][j] = widen<A>(row[j + step]);
                across[i][j] = (widen<A>(row[j]) + centre[i][j]) + widen<A>(row[j + 2 * step]);
            }
        }
    }

    struct alignas(COLUMNS * sizeof(R)) Results {
        R value[COLUMNS];
    };
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        if (y + i >= rows) return;
        Results results;
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            const A sum = (across[i][j] + across[i + 1][j]) + across[i + 2][j];
            results.value[j] = convert<R>(sum - 9 * centre[i + 1][j]);
        }
        if (whole) {
            *reinterpret_cast<Results*>(output + i * target_pitch) = results;
        } else {
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) output[i * target_pitch + j] = results.value[j];
        }
    }
}
