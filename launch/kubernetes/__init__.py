"""Ranks in pods: a plain Job on one node; an MPIJob, a JobSet or a TrainJob on several.

`pods` describes the pods, and `pod_template` writes them; `manifest` generates the objects of a launch, with
the `launcher_script` that starts the ranks; `user_values` checks what the user put in; `kubectl` submits
them; `job` follows the job to its end, using `pod_state` and `pod_log`. `node_verdict`, a separate program,
labels a node with the result of a validation. This room knows neither Slurm nor the command line.
"""

MAY_NOT_IMPORT = ("meshrun.launch.slurm", "meshrun.launch.cli", "click")
