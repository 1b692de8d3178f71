"""Check the facts of all ranks, before any work, for problems that would make a run fail or its results
misleading. It does not know jobs. Others use `inspection.preflight` and `survey.survey`.
"""
