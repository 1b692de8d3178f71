"""The flight recorder: what each rank did last, in shared memory, readable when the rank is stuck. `ring`
writes and reads one rank's operations, `process` says what the kernel knows of a rank's process and where its
Python stands, and `snapshot` puts both together for all ranks of this host. It knows neither MPI, devices nor
jobs, and needs nothing but the standard library. Others use `ring.Recorder` and `snapshot.snapshots`;
`runner.world.stuck` explains what they show.
"""

MAY_NOT_IMPORT = ("mpi4py", "meshrun.runner.comm", "meshrun.runner.device", "meshrun.runner.job")
