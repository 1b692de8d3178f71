"""What every measuring job measures with, once. jobs/bench and jobs/validate import it; it imports neither.

patterns            test data in which any wrong, lost or misplaced element shows
exact_reductions    random inputs whose reduction is exact in any order
check               fill, poison and verify memory, on the host or on a GPU
gate                hold streams back until all work is queued
timers              the host's clock, pairs of events, gated events of several streams
peer_memory         device memory of other processes, by CUDA IPC
link_rates          bytes per second that a collective puts on its tightest link
outliers            statistics of samples, and the rules that call a measurement slow
time_statistics     minimum, percentiles and deviation of single iterations
sizes               sizes in bytes as people write and read them
plots               drawings in .html, .svg and .png
record_file         the JSON file of -J
status_line         the line on a terminal that says what is being measured
watchdog            end a run without progress, and name the stuck rank
exit_codes          exit statuses, and click commands that keep them for usage errors
"""
