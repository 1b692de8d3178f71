"""Distributed arrays in a user's own main program: the world that makes them, and functions of whole arrays
that are called with them. `opening` has `open_world`, `program_world` what it returns. `prepared_function`
computes a job's function, and `numpy_functions` those of NumPy that are traced. `checkpoint` saves and
restores the state of a loop. `rank_processes` starts ranks for a notebook, `rank_server` is what each of them
runs, and `remote_array` what the notebook has of an array. Others use `opening.open_world`,
`prepared_function.call_job`, `checkpoint.checkpoint` and `remote_array.ranks_of`.
"""
