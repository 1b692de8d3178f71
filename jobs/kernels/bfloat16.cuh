// bfloat16 for `widen` and `convert`, apart from common.cuh: few kernels need its header.

#pragma once

#include <cuda_bf16.h>

#include "common.cuh"

template <> __device__ __forceinline__ float widen<float, __nv_bfloat16>(__nv_bfloat16 value) { return __bfloat162float(value); }
template <> struct Convert<__nv_bfloat16> {
    static __device__ __forceinline__ __nv_bfloat16 from(float value) { return __float2bfloat16_rn(value); }
};
