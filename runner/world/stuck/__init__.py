"""Say why a run does not progress. `explain` finds the culprits from what all ranks do, `monitor` watches the
recorders of this host's ranks, and `monitor_process` does so in a process of its own, which reports a stall
and ends the ranks. `gpu_states` asks their GPUs, and `nccl_ras` asks NCCL. It needs nothing of the ranks'
main threads, and knows no MPI. Others use `monitor.start` and `explain.explain`, and `nccl_ras` when NCCL
starts.
"""

MAY_NOT_IMPORT = ("mpi4py", "meshrun.runner.comm")
