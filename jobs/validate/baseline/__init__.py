"""A run compared with earlier healthy runs of the same fleet, which a file keeps.

`compare` decides which runs count, compares and saves; `drift` judges how far rates are from earlier ones;
`run` is one run as a file keeps it; `json` and `sqlite` are the two formats. This room knows reports, and
nothing of how they were measured.
"""
