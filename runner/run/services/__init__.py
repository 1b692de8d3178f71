"""What the runner does for a job of kind "job" that names it as a parameter: `simulation` takes time steps of
a map job, `created_output` creates an output that all ranks write. Others use `simulation.Simulate` and
`created_output.CreateOutput`.
"""
