"""Metrics of a run while it runs, for Prometheus and OpenTelemetry. `families` makes metrics of the ranks'
flight recorders, `endpoint` starts a process on each host that serves those of the host's ranks
(`endpoint_process`). The ranks do nothing for it. It knows neither
MPI nor jobs. Others use `endpoint.start`.
"""

MAY_NOT_IMPORT = ("mpi4py", "meshrun.runner.comm", "meshrun.runner.device", "meshrun.runner.job")
