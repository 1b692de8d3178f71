"""Metrics of a run while it runs, for Prometheus: `families` makes metrics of the ranks' recorders, and
`endpoint` starts a process on each host that serves those of the ranks there (`endpoint_process`). The ranks
do nothing for it. It knows no MPI. Others use `endpoint.start`, and `families` for `meshrun status`.
"""

MAY_NOT_IMPORT = ("mpi4py", "meshrun.runner.comm")
