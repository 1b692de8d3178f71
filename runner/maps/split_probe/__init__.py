"""Before a run, find out whether a job's function computes the same however its array is cut into blocks.

`samples` makes small arrays for it, `probe` computes them whole and in parts and compares the bits, and
`causes` finds the lines of the function that a difference comes from. Others use `probe.check_split`.
"""
