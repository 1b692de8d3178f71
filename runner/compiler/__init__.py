"""Build one kernel from a user's plain function: trace its operations into an expression graph, and generate
CUDA or C++ code from the graph. This package knows neither ranks nor files. Others use `trace.trace`,
`graph.Program`, `compiled.compile_for` and `fill.fill`.
"""
