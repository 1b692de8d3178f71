"""Where arrays live and kernels run: one protocol (`api`), parallel implementations `cpu` (NumPy) and `cuda`
(CuPy), copies beside kernels, and GPUDirect Storage. `raw` has memory, allocators and cuBLAS without arrays,
for measurements. It knows neither ranks nor jobs. CuPy is imported here and in `comm` only. Others use
`api.Backend` and `cuda.kernel`.
"""
