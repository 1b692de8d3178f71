"""Measurement tools that jobs/bench and jobs/validate share; and knows neither validation nor benchmarks.

patterns            test data that reveals any wrong, lost or misplaced element
exact_reductions    random inputs whose reduction is exact in any order
check               fill, poison and verify memory, on the host or on a GPU
gate                hold streams back until all work is queued
timers              the host's clock, pairs of events, gated events of several streams
link_rates          rate of a collective on its limiting link
outliers            statistics of samples, and the rules that call a measurement slow
sizes               parse and format sizes in bytes
plots               plots as .html, .svg and .png
record_file         the JSON file of -J
status_line         the progress line on a terminal
watchdog            end a run that makes no progress, and name the stuck rank
exit_codes          exit statuses, and click commands that use them for usage errors
"""

MAY_NOT_IMPORT = ("meshrun.jobs.validate", "meshrun.jobs.bench")
