// Interpolated bounce-back on the links of a body's surface, and the momentum that they carry.
//
// Limited by memory, and by its latency: each value is one of a line of cells that nobody else needs. Links are few
// beside cells, a surface beside a volume. Links of one direction follow each other, so that neighbours in a warp
// are often neighbours in memory.

#include "common.cuh"

typedef unsigned long long u64;

// populations: where each begins. Indices of arrays as in jobs/airflow/links.py; a thread for each link.
template <typename T>
__global__ void set_slots(T* const* populations, const long long* __restrict__ near, const long long* __restrict__ solid,
                          const unsigned char* __restrict__ direction, const unsigned char* __restrict__ opposite,
                          const long long* __restrict__ far, const unsigned char* __restrict__ far_direction,
                          const float* __restrict__ near_weight, const float* __restrict__ far_weight, long long count) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const float first = widen<float>(populations[direction[i]][near[i]]);
    const float second = widen<float>(populations[far_direction[i]][far[i]]);
    populations[opposite[i]][solid[i]] = convert<T>(near_weight[i] * first + far_weight[i] * second);
}

// velocities: (velocities, axes). total: axes + 1 integers, zero at first: the sums along each axis in units of 1 / UNIT,
// and the number of links that were left out. Integers: the same sums in whatever order blocks come.
template <typename T>
__global__ void momentum(T* const* populations, const long long* __restrict__ near, const long long* __restrict__ solid,
                         const unsigned char* __restrict__ direction, const unsigned char* __restrict__ opposite,
                         const signed char* __restrict__ velocities, int axes, double scale, long long count, u64* total) {
    constexpr int THREADS = 256, AXES = 3;
    constexpr double UNIT = 68719476736.0;  // 2^36, of forces
    constexpr double LARGEST = 4.0;         // of a link's share
    __shared__ long long sums[AXES + 1][THREADS];
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    long long whole = 0, left_out = 0;
    if (i < count) {
        const double here = widen<double>(populations[direction[i]][near[i]]);
        const double there = widen<double>(populations[opposite[i]][solid[i]]);
        const double share = (here + there) * scale;
        if (fabs(share) < LARGEST) {
            whole = static_cast<long long>(rint(share * UNIT));
        } else {
            left_out = 1;
        }
    }
    for (int axis = 0; axis < axes; ++axis) {
        sums[axis][threadIdx.x] = i < count ? whole * velocities[direction[i] * axes + axis] : 0;
    }
    sums[axes][threadIdx.x] = left_out;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            for (int axis = 0; axis <= axes; ++axis) sums[axis][threadIdx.x] += sums[axis][threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        for (int axis = 0; axis <= axes; ++axis) atomicAdd(total + axis, static_cast<u64>(sums[axis][0]));
    }
}
