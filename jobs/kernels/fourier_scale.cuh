// Multiply the results of Fourier transforms by a constant.
//
// Not a kernel: cuFFT links this function into its own last kernel (cufftXtSetJITCallback), which calls it for
// each element instead of storing it. TYPE: float2 or double2. FACTOR: the constant.

__device__ void SCALE(void* out, unsigned long long offset, TYPE element, void* info, void* shared) {
    ((TYPE*)out)[offset] = {element.x * (FACTOR), element.y * (FACTOR)};
}
