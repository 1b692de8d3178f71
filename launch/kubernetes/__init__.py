"""Ranks in pods: an MPIJob for several nodes, a plain Job for one.

`pods` describes the pods, `pod_template` writes them; `manifest` generates the manifest with the
`launcher_script` that starts the ranks;
`user_values` checks what the user put in; `kubectl` submits it; `job` follows the job to its end, using
`pod_state` and `pod_log`. `node_verdict`, a separate program, labels a node with the result of a validation.
This room knows neither Slurm nor the command line.
"""

MAY_NOT_IMPORT = ("meshrun.launch.slurm", "meshrun.launch.cli", "click")
