"""The text of C++ for a graph on a CPU, how it is compiled, and how it is called with NumPy arrays.

`source` makes the text, `host` compiles, loads and calls it.
"""
