"""Collective operations on raw memory, bound once and called repeatedly: one protocol (`api`), implemented by
`mpi`, `threads` (both on `host` memory) and `nccl`; `call_batch` makes a list of C calls without Python in
between. It knows neither arrays nor what is measured. Others use `api`.
"""
