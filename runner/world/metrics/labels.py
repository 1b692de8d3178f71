"""Labels that tell the job of a scheduler: Slurm's, and that of the Kubernetes pod in which ranks run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from meshrun.runner.system.launcher import STARTED_IN, slurm_job

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # that Kubernetes mounts into pods
# Endings of the names of pods, which the controllers add to the name of their job: MPIJob, indexed Job.
POD_ENDINGS = re.compile(r"-(launcher(-[a-z0-9]{5})?|worker-\d+|\d+)$")
IN_POD = ("KUBERNETES_SERVICE_HOST", "K_MPI_JOB_ROLE")  # variables of a pod's processes


def scheduler_labels(
    environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT, host: str | None = None
) -> dict[str, str]:
    """Return the labels of the scheduler's job that this process is of; {} outside of one.

    Parameters
    ----------
    environment: variables of a process. Ranks that ssh starts in a pod have none of Kubernetes' own.
    account: folder of the pod's service account.
    host: host name, which is the pod's name; None: this host's.

    Examples
    --------
    >>> scheduler_labels({"SLURM_JOB_ID": "17"}, Path("/none"))
    {'slurm_job': '17'}
    """
    labels = {}
    if job := slurm_job(environment) or environment.get(STARTED_IN):
        labels["slurm_job"] = job
    if account.is_dir() or any(name in environment for name in IN_POD):
        pod = os.uname().nodename.partition(".")[0] if host is None else host
        labels["kubernetes_job"] = POD_ENDINGS.sub("", pod)
        labels["kubernetes_pod"] = pod
        try:
            labels["kubernetes_namespace"] = (account / "namespace").read_text().strip()
        except OSError:  # pods may be without a service account
            labels["kubernetes_namespace"] = ""
    return labels
