"""Watching over a run from the process that started it, to its end and to the verdict.

`supervisor` runs a launcher, passes on what ranks print and hands down signals; `judge` decides how the run
ended; `status_lines` and `launcher_output` take apart what comes out of it; `shared_memory` and `cleanup`
remove what it leaves; `query` asks other programs. Nothing here knows which launcher that is, where it starts
ranks, or what they run.
"""
