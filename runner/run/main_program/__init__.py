"""Distributed arrays in a user's own main program: the world that makes them, and functions of whole arrays
that are called with them. `program_world` has `open_world`; `prepared_function` computes a job's function,
and `numpy_functions` those of NumPy that are traced. `checkpoint` saves and restores the state of a loop.
Others use `program_world.open_world`, `prepared_function.call_job` and `checkpoint.checkpoint`.
"""
