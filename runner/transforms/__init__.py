"""Fourier transforms and products of arrays that are split over ranks: plans, and how they are carried out.

plan       how an array is split at each stage of a transform, by number of ranks and shape
fourier    transforms of blocks along whole axes, with NumPy's conventions, and exchanges between them
split      transforms whose order of axes, and bits, do not depend on the number of ranks
line       transforms of arrays of one axis, as matrices
device     transforms between two arrays of one GPU
peers      memory of GPUs that every rank of a host can write
product    products of two matrices

It knows no jobs.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job",)
