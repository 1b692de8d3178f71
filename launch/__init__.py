"""The `meshrun` command, and how ranks are started: on this machine, by mpirun, Slurm or Kubernetes.

`spec` says what to run on how many hosts; `supervise` watches over a run; `mpi`, `slurm` and `kubernetes`
start ranks; `cli` is the command. Importing it needs neither NumPy, MPI nor CuPy, so the command answers at
once; it enters `runner` only inside a command.
"""
