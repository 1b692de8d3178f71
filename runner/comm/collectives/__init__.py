"""Collective operations on raw memory, bound once and called repeatedly: one protocol (`api`), implemented by
`mpi`, `threads` (both on `host` memory) and `nccl`; `call_batch` makes a list of C calls without Python in
between. It knows neither distributed arrays nor jobs. Others use `api`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.arrays", "meshrun.runner.job")
