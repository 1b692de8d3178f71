"""GPU memory, streams, events, allocators and cuBLAS on raw addresses, for measurements. It knows neither
ranks nor jobs. Others use `box.open_box`, `allocators.open_pools` and `blas`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.world", "meshrun.runner.job")
