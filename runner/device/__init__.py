"""Compute back ends: one protocol (`api`), implemented by `cpu` (NumPy) and `cuda` (CuPy), with copies that
overlap kernels, and GPUDirect Storage. `raw` has memory, allocators and cuBLAS without arrays, for
measurements. It knows neither ranks nor jobs. CuPy is imported here and in `comm` only. Others use
`api.Backend` and `cuda.kernel`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.world", "meshrun.runner.job")
