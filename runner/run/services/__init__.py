"""Jobs whose result is not an array that is partitioned like its input: `job_run` calls them, `simulation`
takes time steps of a map job for one, `created_output` creates outputs that all ranks write. Others use
`simulation.Simulate` and `created_output.CreateOutput`.
"""
