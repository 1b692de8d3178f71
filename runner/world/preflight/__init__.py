"""Check the facts of all ranks, before any work, for problems that would make a run fail or its results
misleading. It knows no jobs. Others use `inspection.preflight` and `survey.survey`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job",)
