"""An array of any size through the ranks, a chunk after another, several under way at once.

`flow` moves one rank's chunks through an engine, `host` or `device`; `run` is the whole of it: what is cut
how, which rank does what, what an earlier run has finished.
"""
