"""Supervise a run in the process that started it, until its end.

`supervisor` runs a launcher, forwards the ranks' output and passes signals to the launcher; `judge`
determines how the run ended; `status_lines` and `launcher_output` filter the output; `shared_memory` and
`cleanup` remove what a run leaves behind; `query` runs other programs. This room knows neither launchers nor
the command line.
"""

MAY_NOT_IMPORT = (
    "meshrun.launch.mpi",
    "meshrun.launch.slurm",
    "meshrun.launch.kubernetes",
    "meshrun.launch.cli",
    "click",
)
