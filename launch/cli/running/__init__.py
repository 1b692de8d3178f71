"""Commands about runs that are going on: `status`. They start no ranks, find runs by what their ranks leave
in shared memory, and know neither jobs nor launchers. Found by entry point.
"""

MAY_NOT_IMPORT = (
    "meshrun.runner.job",
    "meshrun.launch.mpi",
    "meshrun.launch.slurm",
    "meshrun.launch.kubernetes",
)
