"""Programs in stages: what a function of whole arrays computes where one pass over the cells is not enough.

`stages` has the data classes and plans a program: kernels over cells, reductions, and arithmetic of values.
`cells` has what a stage computes per cell, `kernel` and `level_kernel` compute it, also between grids of two
levels. `chains` finds consecutive stages of few cells, which one call computes, `replicas` the levels whose
cells each rank has. `reducing` finds the kernels that reduce what they compute, and `execute` runs a program
over distributed arrays; `looping` and `body_graphs` run its loops, `memory` says what its arrays take.
`spectral/` is for functions with Fourier transforms or products, whose parts are programs. It knows neither
jobs nor array files. Others use `stages.plan_program`, `reducing` and `execute.ProgramRun`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job", "meshrun.runner.storage")
