"""NumPy's functions of whole arrays, for arrays that are split over the ranks: sorting, searching, counting,
order statistics, scans, and linear algebra of a small matrix per cell. `cells` has what they share: a rank's
cells in order, and arrays made of them. `routes` sends rows to their owners. `fixed_point` adds floats so
that no order changes the bits. `table` names NumPy's function of each. It knows no jobs.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job",)
