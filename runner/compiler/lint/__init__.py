"""Say what a job's function does with its blocks, by its source: the functions that it calls, the statements
by which a result depends on how an array is cut, the numbers that a small array must suit, and the lines that
compute cells beyond an array's edges. This room may know the tracer, but no kernels, no ranks and no files.
"""
