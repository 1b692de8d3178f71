// Matrix product in float32 by tiles in shared memory and, of these, tiles in registers.
//
// Limited by the arithmetic, nearly: a thread makes 8 x 8 elements of the result, and for 64 multiplications and
// additions loads 16 elements from shared memory, four at a time. A block makes 128 x 128 of them and reads each
// element of its 8-deep slices of the inputs once. While one slice is multiplied, the next is on its way from
// global memory into registers, and goes to a second buffer: one barrier a slice.
//
// The left slice is stored transposed, so that what a thread needs at a time, eight elements of a column, is
// consecutive. A warp makes 64 x 32: a thread's rows and columns lie in two pieces of four, so that the warp's
// loads of four elements are of consecutive addresses, without bank conflicts.
//
// Grid: 1-D, a block for each tile of 128 x 128 of the result, along the rows: ceil(m / 128) * ceil(n / 128).
// Block: 256 threads. Arguments: a, b, c, int64 m, int64 n, int64 k. WIDE needs all three addresses to be multiples
// of 16 bytes, and n and k multiples of 4. Meant for --fmad=true.

constexpr int THREADS = 256;
constexpr int SIDE = 128;        // of a block's tile
constexpr int DEPTH = 8;         // of a slice: four elements of each input for each thread to fetch
constexpr int PITCH = SIDE + 4;  // of the transposed slice: fewer bank conflicts when it is stored

// Four consecutive elements, of which `count` are there; zeros for the others. WIDE: count is 4 or more, or none.
template <bool WIDE> __device__ __forceinline__ float4 fetch(const float* from, int count) {
    float4 piece = {0, 0, 0, 0};
    if (WIDE) {
        if (count > 0) piece = *reinterpret_cast<const float4*>(from);
    } else {
        if (count > 0) piece.x = from[0];
        if (count > 1) piece.y = from[1];
        if (count > 2) piece.z = from[2];
        if (count > 3) piece.w = from[3];
    }
    return piece;
}

// Of a thread's eight rows or columns: elements first .. first + 3, and those `apart` further on.
__device__ __forceinline__ void pick(float (&out)[8], const float* first, int apart) {
    *reinterpret_cast<float4*>(out) = *reinterpret_cast<const float4*>(first);
    *reinterpret_cast<float4*>(out + 4) = *reinterpret_cast<const float4*>(first + apart);
}

// a: (m, k), b: (k, n), c: (m, n), all C-contiguous.
template <bool WIDE>
__global__ void __launch_bounds__(THREADS, 2)
    matmul_register(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, long long m, long long n,
                    long long k) {
    alignas(16) __shared__ float left[2][DEPTH][PITCH];
    alignas(16) __shared__ float right[2][DEPTH][SIDE];
    const long long across = (n + SIDE - 1) / SIDE;
    const long long top = blockIdx.x / across * SIDE, beside = blockIdx.x % across * SIDE;
    const int thread = threadIdx.x;

    // What the thread fetches: of the left slice four elements along k, of the right one four along n.
    constexpr int LEFT = DEPTH / 4, RIGHT = SIDE / 4;  // pieces in a row
    const int row = thread / LEFT, deep = thread % LEFT * 4;
    const int line = thread / RIGHT, column = thread % RIGHT * 4;
    const bool inside = top + row < m;
    const int wide = min(n - beside - column, 4ll);  // elements of the row of `right` that are there
    const float* from_left = a + (top + row) * k + deep;
    const float* from_right = b + line * n + beside + column;
    float4 piece_left, piece_right;
    const auto fetch_slice = [&](int rest) {  // of `rest` elements along k that are not fetched yet
        piece_left = fetch<WIDE>(from_left, inside ? rest - deep : 0);
        piece_right = fetch<WIDE>(from_right, line < rest ? wide : 0);
        from_left += DEPTH;
        from_right += DEPTH * n;
    };
    const auto store_slice = [&](int buffer) {
        left[buffer][deep][row] = piece_left.x;
        left[buffer][deep + 1][row] = piece_left.y;
        left[buffer][deep + 2][row] = piece_left.z;
        left[buffer][deep + 3][row] = piece_left.w;
        *reinterpret_cast<float4*>(&right[buffer][line][column]) = piece_right;
    };

    // What it makes: warps 2 x 4, lanes 8 x 4, such that eight neighbours need 4 + 2 different addresses.
    const int warp = thread / 32, lane = thread % 32;
    const int y = warp / 4 * 64 + lane / 2 % 8 * 4;                // and y + 32
    const int x = warp % 4 * 32 + (lane % 2 + lane / 16 * 2) * 4;  // and x + 16

    float sum[8][8] = {};
    fetch_slice(k);
    store_slice(0);
    __syncthreads();
    int buffer = 0;
    for (int rest = k - DEPTH; rest > -DEPTH; rest -= DEPTH) {
        if (rest > 0) fetch_slice(rest);
        // Two steps at a time: of more, so many elements are loaded ahead that registers run out.
#pragma unroll 2
        for (int i = 0; i < DEPTH; ++i) {
            alignas(16) float of_left[8], of_right[8];
            pick(of_left, &left[buffer][i][y], 32);
            pick(of_right, &right[buffer][i][x], 16);
#pragma unroll
            for (int p = 0; p < 8; ++p) {
#pragma unroll
                for (int q = 0; q < 8; ++q) sum[p][q] += of_left[p] * of_right[q];
            }
        }
        buffer ^= 1;
        if (rest > 0) store_slice(buffer);
        __syncthreads();
    }

#pragma unroll
    for (int p = 0; p < 8; ++p) {
        const long long target_row = top + y + p % 4 + p / 4 * 32;
        if (target_row >= m) continue;
#pragma unroll
        for (int q = 0; q < 8; q += 4) {
            const long long target_column = beside + x + q * 4;  // the second piece is 16 further on
            float* target = c + target_row * n + target_column;
            if (WIDE) {
                const float4 piece = {sum[p][q], sum[p][q + 1], sum[p][q + 2], sum[p][q + 3]};
                if (target_column < n) *reinterpret_cast<float4*>(target) = piece;
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    if (target_column + i < n) target[i] = sum[p][q + i];
                }
            }
        }
    }
}
