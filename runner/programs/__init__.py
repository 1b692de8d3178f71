"""Programs in stages: what a function of whole arrays computes where one pass over the cells is not enough.

`stages` has the data classes and plans a program: kernels over cells, reductions, and arithmetic of values.
`cells` has what a stage computes per cell, `kernel` and `level_kernel` compute it, also between grids of two
levels, `reducing` finds the kernels that reduce what they compute, `exact_sum` adds floats without rounding,
and `execute` runs a program over distributed arrays. `layouts` and `spectral_run` do the same for functions
with Fourier transforms or products, whose parts are programs. It knows neither jobs nor array files. Others
use `stages.plan_program`, `reducing` and `execute.ProgramArrays`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job", "meshrun.runner.storage")
