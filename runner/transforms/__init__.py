"""Fourier transforms of arrays that are split over ranks: their plans, and how they are carried out.

plan       how an array is split at each stage of a transform, by number of ranks and shape
fourier    transforms of blocks along whole axes, with NumPy's conventions, and exchanges between them

It knows no jobs.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job",)
