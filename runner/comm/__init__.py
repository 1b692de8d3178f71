"""Messages between ranks: one protocol (`api`), implemented by `mpi` (control values, host arrays),
`nccl_transfers` (device arrays; `nccl` loads the library), `staged` (device arrays through host memory)
and `threads` (ranks as threads, and the single rank of a process without MPI). `peer_memory` opens device
memory of other processes of the host. `collectives` binds calls to raw memory, for measurements. It knows
neither array files, jobs nor plans. Arrays that cross are C-contiguous and are never pickled. Others use
`api.Control` and `collectives.api`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.storage", "meshrun.runner.job", "meshrun.runner.plan")
