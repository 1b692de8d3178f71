"""One kernel from a user's plain function: its operations are traced into an expression graph, which becomes
CUDA (or CPU) code. It knows neither ranks nor files. Others use `trace.trace`, `graph.Program` and the
kernels built from it.
"""
