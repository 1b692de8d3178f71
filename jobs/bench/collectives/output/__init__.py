"""Output of the measurements, and its readers.

nccl_tests_text, nccl_tests_json    a run in nccl-tests' formats
rows_csv                            the rows as CSV
names                               ranks and groups behind a row's numbers
screen                              what rank 0 prints during a run
plots                               time and bandwidth against size and against ranks
reader, compare                     records and texts read back, and two of them compared

It knows no sessions. Others use these modules by name.
"""

MAY_NOT_IMPORT = ("meshrun.jobs.bench.collectives.session",)
