"""NumPy's operations on arrays that are split over the ranks: each rank computes its own cells.

Where operands are not cut alike, ranks first send each other the cells that they lack. `split_array` has the
class with the operators, indices and NumPy's protocols, which `DistributedArray` is; `table` lists the
functions, which the other modules and `runner.run` fill. It knows no jobs.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job",)
