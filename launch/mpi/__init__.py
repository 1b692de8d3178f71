"""Ranks started by an MPI launcher: on this machine, or on hosts reached by ssh.

`launcher` finds the installed mpiexec, `library` the MPI that ranks will load, `environment` the variables
for both; `rank_command` is what each rank runs. `local` and `mpirun` start a run, once `ssh_hosts` has found
that the hosts answer. Nothing here knows of Slurm, Kubernetes, or the command line.
"""
