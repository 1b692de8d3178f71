"""A function of whole arrays, as NumPy calls it, becomes a program that computes each cell by itself.

An index of a traced array is a place: `a[0] = v` writes the cells at place 0, and no others. `graph` has the
nodes for places beside those of `compiler.trace.graph`, `array` the stand-ins for NumPy's arrays, `functions`
NumPy's functions on them, `trace` calls the user's function. It knows no device and no ranks. Others use
`trace.trace_whole`.
"""
