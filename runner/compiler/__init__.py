"""Build one kernel from a user's plain function: trace its operations into an expression graph, and generate
CUDA or C++ code from the graph. It knows neither ranks nor array files. Others use `trace.trace`,
`graph.Program`, `compiled.compile_for` and `fill.fill`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.world", "meshrun.runner.storage")
