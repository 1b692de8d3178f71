"""Collective operations on raw memory, bound once and then called: one protocol (`api`), implementations
`host`, `mpi`, `threads` and `nccl`; `call_batch` makes a list of C calls without Python in between. It knows
nothing of arrays or of what is measured. Others use `api`.
"""
