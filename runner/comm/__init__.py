"""Messages between ranks: one protocol (`api`), implementations `mpi` (control values, host arrays), `nccl`
(device arrays), `staged` (device arrays through host memory) and `threads` (ranks as threads, and a process
alone). `collectives` binds calls to raw memory, for measurements. It does not know what is sent or why.
Arrays that cross are C-contiguous and are never pickled. Others use `api.Control` and `collectives.api`.
"""
