"""Ranks started by Slurm: as a batch job, or as a step of the current allocation.

`batch_script` generates the script, `pmi` chooses how srun connects the ranks; `job` submits and follows a
job, whose output and end `followed_job` reads; `queries` calls Slurm's commands. This room knows neither
Kubernetes nor the command line.
"""

MAY_NOT_IMPORT = ("meshrun.launch.kubernetes", "meshrun.launch.cli", "click")
