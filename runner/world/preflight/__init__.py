"""What would make a run fail or mislead, found in the facts of all ranks before any work. It knows nothing of
jobs. Others use `inspection.preflight` and `survey.survey`.
"""
