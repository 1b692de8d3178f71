// Fourier transforms of long lines that lie across memory, side by side: read once and written once.
//
// Limited by memory: a block transforms LINES neighbours, so that its accesses cover whole segments of 64 bytes
// (2048 elements) or 32 (4096). Each thread has 16 elements in registers. cuFFT 12 reads and writes lines of
// these lengths twice.
//
// Transforms of radix 16, 16 and N / 256, where n = (N / 16) n1 + n' and n' = (N / 256) n2 + n'':
//
//     X[k1 + 16 k2 + 256 k3] = sum over n'' of w(N / 256)^(n'' k3) w(N / 16)^(n'' k2)
//                              sum over n2 of w(16)^(n2 k2) w(N)^(n' k1)
//                              sum over n1 of w(16)^(n1 k1) x[n]
//
// with w(m) = exp(SIGN 2 pi i / m). Between them a line's threads exchange elements through shared memory.
//
// Grid: ceil(lines / LINES). Block: N / 16 * LINES threads. Dynamic shared memory: N / 256 * 257 * LINES
// elements. N: 2048 or 4096.

constexpr int EACH = 16;  // elements of a thread

struct __align__(8) Complex {
    float x, y;
};
__device__ __forceinline__ Complex operator+(Complex a, Complex b) { return {a.x + b.x, a.y + b.y}; }
__device__ __forceinline__ Complex operator-(Complex a, Complex b) { return {a.x - b.x, a.y - b.y}; }
__device__ __forceinline__ Complex operator*(Complex a, Complex b) {
    return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}

// Multiply by exp(SIGN 2 pi i K / 16).
template <int SIGN, int K> __device__ __forceinline__ Complex turn(Complex a) {
    constexpr float half = 0.70710678118654752440f;                                   // sqrt(1 / 2)
    constexpr float cosine = 0.92387953251128675613f, sine = 0.38268343236508977173f;  // of pi / 8
    if constexpr (K >= 4) return turn<SIGN, K - 4>(Complex{-SIGN * a.y, SIGN * a.x});
    else if constexpr (K == 3) return a * Complex{sine, SIGN * cosine};
    else if constexpr (K == 2) return {half * (a.x - SIGN * a.y), half * (a.y + SIGN * a.x)};
    else if constexpr (K == 1) return a * Complex{cosine, SIGN * sine};
    else return a;
}

__device__ __forceinline__ void transform_2(Complex& a, Complex& b) {
    const Complex sum = a + b;
    b = a - b;
    a = sum;
}
template <int SIGN> __device__ __forceinline__ void transform_4(Complex& a, Complex& b, Complex& c, Complex& d) {
    transform_2(a, c);
    transform_2(b, d);
    d = turn<SIGN, 4>(d);
    transform_2(a, b);
    transform_2(c, d);
    const Complex second = c;
    c = b;
    b = second;
}

// Transform RADIX elements in place; result k is then at `place<RADIX>(k)`.
template <int SIGN, int RADIX> __device__ __forceinline__ void transform(Complex* x) {
    if constexpr (RADIX == 8) {
        transform_4<SIGN>(x[0], x[2], x[4], x[6]);
        transform_4<SIGN>(x[1], x[3], x[5], x[7]);
        x[3] = turn<SIGN, 2>(x[3]);
        x[5] = turn<SIGN, 4>(x[5]);
        x[7] = turn<SIGN, 6>(x[7]);
#pragma unroll
        for (int k = 0; k < 4; ++k) transform_2(x[2 * k], x[2 * k + 1]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) transform_4<SIGN>(x[i], x[i + 4], x[i + 8], x[i + 12]);
        x[5] = turn<SIGN, 1>(x[5]);
        x[6] = turn<SIGN, 2>(x[6]);
        x[7] = turn<SIGN, 3>(x[7]);
        x[9] = turn<SIGN, 2>(x[9]);
        x[10] = turn<SIGN, 4>(x[10]);
        x[11] = turn<SIGN, 6>(x[11]);
        x[13] = turn<SIGN, 3>(x[13]);
        x[14] = turn<SIGN, 6>(x[14]);
        x[15] = turn<SIGN, 9>(x[15]);
#pragma unroll
        for (int k = 0; k < 4; ++k) transform_4<SIGN>(x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3]);
    }
}
template <int RADIX> __device__ __forceinline__ constexpr int place(int k) {
    return RADIX == 16 ? k % 4 * 4 + k / 4 : k % 4 * 2 + k / 4;
}

// out, source: element n of line l at n * pitch + l; the same array if the pitches are equal. roots: w(N)^k,
// k < N.
template <int N, int LINES, int SIGN>
__global__ void __launch_bounds__(N / EACH * LINES, 1)
    fourier_lines(Complex* out, const Complex* source, long long out_pitch, long long source_pitch, unsigned lines,
                  const Complex* __restrict__ roots) {
    constexpr int LENGTH = N / EACH, THREADS = LENGTH * LINES;  // of n'; of the block
    constexpr int LAST = N / 256;                               // of n''
    constexpr int ROW = 257 * LINES;  // of 256 pairs (k1, k2); one more, so that rows begin in different banks
    extern __shared__ __align__(16) char memory[];
    Complex* const shared = reinterpret_cast<Complex*>(memory);
    const unsigned line = threadIdx.x % LINES, thread = threadIdx.x / LINES;
    const unsigned column = blockIdx.x * LINES + line;
    const bool inside = column < lines;

    Complex x[EACH] = {};
    const Complex* from = source + column + thread * source_pitch;
    if (inside) {
#pragma unroll
        for (int n = 0; n < EACH; ++n, from += LENGTH * source_pitch) x[n] = *from;
    }

    transform<SIGN, 16>(x);  // of n1; n' = thread
#pragma unroll
    for (int k = 0; k < EACH; ++k) shared[k * THREADS + threadIdx.x] = x[place<16>(k)] * roots[thread * k];
    __syncthreads();
    const unsigned first = thread / LAST, rest = thread % LAST;  // k1, n''
    const Complex* const some = shared + (first * LENGTH + rest) * LINES + line;
#pragma unroll
    for (int n = 0; n < EACH; ++n) x[n] = some[n * LAST * LINES];
    __syncthreads();

    transform<SIGN, 16>(x);  // of n2
    Complex* const row = shared + rest * ROW + first * 16 * LINES + line;
#pragma unroll
    for (int k = 0; k < EACH; ++k) row[k * LINES] = x[place<16>(k)] * roots[16 * rest * k];
    __syncthreads();

#pragma unroll
    for (int n = 0; n < EACH / LAST; ++n) {
        const unsigned pair = thread + n * LENGTH;  // 16 k1 + k2
#pragma unroll
        for (int i = 0; i < LAST; ++i) x[i] = shared[i * ROW + n * THREADS + threadIdx.x];
        transform<SIGN, LAST>(x);  // of n''
        Complex* to = out + column + (pair / 16 + pair % 16 * 16) * out_pitch;
        if (inside) {
#pragma unroll
            for (int k = 0; k < LAST; ++k, to += 256 * out_pitch) *to = x[place<LAST>(k)];
        }
    }
}
