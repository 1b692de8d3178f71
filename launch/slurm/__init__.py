"""Ranks started by Slurm: as a batch job, or as a step of the allocation around this process.

`batch_script` says what to ask for, `pmi` how srun joins the ranks; `job` submits and follows a job, whose
output and end `followed_job` reads; `queries` asks Slurm's commands. Nothing here knows of the command line.
"""
