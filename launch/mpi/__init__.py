"""Ranks started by an MPI launcher: on this machine, or on hosts reached by ssh.

`launcher` finds the installed mpiexec, `library` the MPI library that ranks will load, `environment` the
variables for both; `rank_command` is the command of each rank. `local` and `mpirun` start a run, after
`ssh_hosts` has checked the hosts. This room knows neither Slurm, Kubernetes nor the command line.
"""

MAY_NOT_IMPORT = ("meshrun.launch.slurm", "meshrun.launch.kubernetes", "meshrun.launch.cli", "click")
