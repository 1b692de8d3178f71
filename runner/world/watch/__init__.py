"""Names the part that slows a run while it runs: `judge` finds it in what the ranks did between two looks,
and `readings` takes these looks from the recorders, /proc and NVML. The process that watches for stalls
(`runner.world.stuck.monitor_process`) calls both. The ranks do nothing for it. It knows no MPI.
"""

MAY_NOT_IMPORT = ("mpi4py", "meshrun.runner.comm")
