// One expression applied to every element, in one pass; -DEXPRESSION=... is C++ in `x` of type C.
//
// Limited by memory, unless the expression holds many transcendental functions or is computed in double.
// Each thread takes ELEMENTS elements, a block apart, to have enough reads under way.

#include "common.cuh"

constexpr int ELEMENTS = 4;

// NumPy's meaning of what C++ has not or means otherwise.
template <typename C> __device__ C minimum(C a, C b) { return a <= b || a != a ? a : b; }
template <typename C> __device__ C maximum(C a, C b) { return a >= b || a != a ? a : b; }
template <typename C> __device__ C square(C a) { return a * a; }
template <typename C> __device__ C choose(C condition, C a, C b) { return condition != C(0) ? a : b; }
template <typename C> __device__ C remainder_of(C a, C b) {
    const C rest = fmod(a, b);
    if (b == C(0) || rest != rest) return rest;
    if (rest == C(0)) return copysign(C(0), b);
    return (b < C(0)) != (rest < C(0)) ? rest + b : rest;
}
template <typename C> __device__ C floor_quotient(C a, C b) {
    if (b == C(0)) return a / b;
    const C rest = fmod(a, b);
    C quotient = (a - rest) / b;
    if (rest != C(0) && (b < C(0)) != (rest < C(0))) quotient -= C(1);
    if (quotient == C(0)) return copysign(C(0), a / b);
    const C whole = floor(quotient);
    return quotient - whole > C(0.5) ? whole + C(1) : whole;
}

template <typename T, typename C, typename R>
__global__ void elementwise(const T* __restrict__ input, R* __restrict__ output, long long count) {
    const long long first = static_cast<long long>(blockIdx.x) * blockDim.x * ELEMENTS + threadIdx.x;
#pragma unroll
    for (int k = 0; k < ELEMENTS; ++k) {
        const long long i = first + k * static_cast<long long>(blockDim.x);
        if (i >= count) return;
        [[maybe_unused]] const C x = widen<C>(input[i]);
        output[i] = convert<R>(C(EXPRESSION));
    }
}
