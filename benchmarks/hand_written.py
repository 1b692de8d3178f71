"""What one would write by hand with mpi4py and NumPy: the Laplacian of a .npy file, rows over ranks.

    mpiexec -n 2 python benchmarks/hand_written.py INPUT.npy OUTPUT.npy

The peer of `meshrun run laplacian` in host_laplacian.py: the same work, nothing checked.
"""

import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

source = np.load(sys.argv[1], mmap_mode="r")
rows, columns = source.shape
start, stop = rows * rank // size, rows * (rank + 1) // size
block = np.empty((stop - start + 2, columns + 2), source.dtype)
block[1:-1, 1:-1] = source[start:stop]

# Halo rows from the neighbours; "reflect" repeats the edge.
above = rank - 1 if rank > 0 else MPI.PROC_NULL
below = rank + 1 if rank < size - 1 else MPI.PROC_NULL
block[0], block[-1] = block[1], block[-2]
comm.Sendrecv(block[1], above, recvbuf=block[-1], source=below)
comm.Sendrecv(block[-2], below, recvbuf=block[0], source=above)
block[:, 0], block[:, -1] = block[:, 1], block[:, -2]

across = block[:, :-2] + block[:, 1:-1] + block[:, 2:]
result = across[:-2] + across[1:-1] + across[2:] - 9 * block[1:-1, 1:-1]

if rank == 0:
    np.lib.format.open_memmap(sys.argv[2], "w+", result.dtype, source.shape)
comm.Barrier()
target = np.load(sys.argv[2], mmap_mode="r+")
target[start:stop] = result
comm.Barrier()
