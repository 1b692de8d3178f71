"""The `meshrun` command, which starts ranks on this machine or through mpirun, Slurm or Kubernetes.

`host_list` reads lists of hosts; `spec` describes what to run on them; `supervise` monitors a run; `mpi`,
`slurm` and `kubernetes` start ranks; `cli` is the command. Importing it loads neither NumPy, MPI nor CuPy,
so that the command responds quickly; it imports `runner` only inside a command.
"""
