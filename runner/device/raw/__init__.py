"""A GPU's memory, streams, events, allocators and cuBLAS without arrays in between, for measurements. It
knows neither ranks nor jobs. Others use `memory.Box`, `cuda_memory.open_box`, `cuda_allocators.open_pools`
and `blas`.
"""
