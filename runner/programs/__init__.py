"""Programs in stages: what a function of whole arrays computes where one pass over the cells is not enough.

`stages` has the data classes and plans a program: kernels over cells, reductions, and arithmetic of values.
`kernel` computes a stage's cells, `reduction` reduces cells in a tree that depends on shapes alone, and
`execute` runs a program over distributed arrays. It knows neither jobs nor array files. Others use
`stages.plan_program` and `execute.ProgramArrays`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job", "meshrun.runner.storage")
