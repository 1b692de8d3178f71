"""What every measuring job measures with, once: jobs/bench and jobs/validate import it, it imports neither.

patterns            test data in which any wrong, lost or misplaced element shows
exact_reductions    random inputs whose reduction is exact in any order
check               fill, poison and verify memory, on the host or on a GPU
gate                hold streams back until all work is queued
link_rates          bytes per second that a collective puts on its tightest link
statistics          minimum, percentiles and deviation of single iterations
exit_codes          click commands whose usage errors end with a documented exit status
"""
