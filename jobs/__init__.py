"""The built-in jobs, one module a job. They use the runner through its public names only."""
