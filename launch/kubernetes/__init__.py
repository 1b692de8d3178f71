"""Ranks in pods: an MPIJob for several nodes, a plain Job for one.

`pods` describes the pods, `manifest` writes them down with the `launcher_script` that starts the ranks, and
`schema` checks the result; `kubectl` submits it; `job` follows it to its end, by `pod_state` and `pod_log`.
`node_verdict`, a program of its own, labels a node with a validation's result. Nothing here knows of the
command line.
"""
