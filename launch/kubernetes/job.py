"""Submit a job to Kubernetes, forward its log, and judge the run by the ranks' status lines.

The status of a job or pod does not prove that the results are complete. The status lines are in the launcher
pod's log.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import time
from collections.abc import Iterable, Sequence

from meshrun.launch.kubernetes import kubectl, manifest, pod_state, user_values
from meshrun.launch.kubernetes.kubectl import ClusterJob, NoAnswer
from meshrun.launch.kubernetes.pod_log import PodLog
from meshrun.launch.kubernetes.pod_state import Object
from meshrun.launch.kubernetes.pod_template import JOB, Document
from meshrun.launch.kubernetes.pods import Pods
from meshrun.launch.spec import LaunchSpec
from meshrun.launch.supervise.judge import Conclude, Outcome, judge, no_answer
from meshrun.launch.supervise.status_lines import StatusLines
from meshrun.launch.supervise.supervisor import signal_handlers

STEP = 0.2  # seconds until a signal is noticed
START_INTERVAL = 2.0  # seconds between queries while pods are starting
RUN_INTERVAL = 15.0  # seconds between queries while pods are running
ANSWER_TIMEOUT = 60.0  # seconds without an answer from the cluster
MAX_LOG_FAILURES = 20  # consecutive log streams that break immediately
MAX_MISSING = 3  # queries until a missing launcher pod counts as deleted


def preview(spec: LaunchSpec, pods: Pods) -> str:
    """The manifest that `start` submits, without the options of one run; UserError for an invalid one."""
    return manifest.text(_objects(spec, pods))


def start(spec: LaunchSpec, pods: Pods, *, debug: bool = False, conclude: Conclude = no_answer) -> int:
    """Submit the job, follow it to its end, and judge the run; returns the run's exit status.

    A job whose pods cannot start is deleted, as is an interrupted one (exit status 128 + signal). Raises
    UserError if nothing is submitted, and RunError if the cluster stops answering.
    """
    from meshrun.runner.errors import tell
    from meshrun.runner.world.run_status import RunDirectory

    token = secrets.token_hex(8)
    objects = _objects(spec, pods, token)
    job = ClusterJob(kubectl.find(), objects[-1]["kind"], pods.name, pods.namespace)
    run = RunDirectory.create()
    followed = _Followed(job, StatusLines(run, token), pods.start_timeout)
    try:
        with signal_handlers(followed.signalled):
            job.create(objects)
            tell(f"{job} is submitted; to see its pods: kubectl get pods -l {JOB}={pods.name}")
            followed.to_its_end()
        if followed.fault:
            failure = {"exit_code": 1, "sentence": followed.fault, "rank": None}
            if not run.claim_failure(failure):  # a rank's failure, of which this may be the cause
                tell(followed.fault)
        (run.path / "partial").unlink(missing_ok=True)  # a file in the cluster, not here
        return judge(run, followed.outcome(), debug, conclude=conclude, files=False)
    except KeyboardInterrupt:  # the second signal
        tell(f"not waiting for the pods of {job} to end")
        return 128 + (followed.interrupted or signal.SIGINT)
    finally:
        followed.log.close()
        shutil.rmtree(run.path, ignore_errors=True)


def _objects(spec: LaunchSpec, pods: Pods, token: str | None = None) -> list[Document]:
    from meshrun.runner.errors import UserError

    if excluded := list(user_values.conflicts(spec, pods, manifest.kind_of(spec, pods))):
        raise UserError("; ".join(excluded))
    objects = manifest.documents(spec, pods, token)
    if wrong := user_values.problems(objects):
        raise UserError(f"the {objects[-1]['kind']} is invalid: {'; '.join(wrong)}")
    return objects


class _Followed:
    """A submitted job. status: of mpiexec. fault: why the cluster has ended it, or cannot start it."""

    def __init__(self, job: ClusterJob, status_lines: StatusLines, timeout: float) -> None:
        self.job, self.timeout = job, timeout
        self.log = PodLog(lambda since: job.log(self._launcher, since), status_lines)
        self.interrupted: signal.Signals | None = None
        self.status = 1
        self.fault: str | None = None
        self._launcher = ""
        self._running = self._doomed = False
        self._missed = 0
        self._begun = self._answered = time.monotonic()
        self._printed: set[str] = set()

    def signalled(self, number: int, _: object) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = signal.Signals(number)

    def to_its_end(self) -> None:
        """Forward the log until mpiexec has ended or the job must be ended; leaves no pod running."""
        while not self.interrupted and not self._over():
            self._relay(RUN_INTERVAL if self._running else START_INTERVAL)
        self.log.finish()
        if self.interrupted or self._doomed:
            self._delete()

    def outcome(self) -> Outcome:
        return Outcome(self.status, self.interrupted, self.log.launcher_output, self.log.output_tail)

    def _relay(self, seconds: float) -> None:
        """Forward the log for some time, or until the stream ends or a signal arrives."""
        until, ended = time.monotonic() + seconds, not self._launcher
        while time.monotonic() < until and not self.interrupted:
            if ended:
                time.sleep(STEP)
            elif not self.log.relay(STEP):
                self._broken()
                # The pod's status may be late, or the cluster busy.
                until, ended = time.monotonic() + min(START_INTERVAL, seconds), True

    def _over(self) -> bool:
        """Query the pods; returns whether the run is over."""
        try:
            return self._judged(self.job.pods())
        except NoAnswer as reason:
            self._unanswered(reason)
            return False

    def _judged(self, pods: Sequence[Object]) -> bool:
        self._answered = time.monotonic()
        launcher = pod_state.launcher(pods)
        if launcher is None:
            return self._has_no_launcher()
        status = pod_state.exit_status(launcher)
        if status is not None and not pod_state.deleted(launcher):
            self.status, self._launcher = status, pod_state.name(launcher)
            self.log.rest()
            # A pod that is still waiting explains why the others failed.
            reasons = (*map(pod_state.fault, pods), *map(pod_state.waits_for, pods))
            self.fault = _first(reasons) if status else None
            return True
        self.fault = _first((*map(pod_state.fault, pods), *map(pod_state.lost_worker, pods)))
        if self.fault:
            self._doomed = True
            return True
        for waits in filter(None, map(pod_state.waits_for, pods)):
            self._print_once(waits)
        if pod_state.running(launcher):
            self._launcher = pod_state.name(launcher)
            self._running = all(map(pod_state.running, pods))
        return not self._launcher and self._too_late()

    def _has_no_launcher(self) -> bool:
        """Whether a job without a launcher pod is over; the pod may not exist yet, or no longer."""
        found = self.job.get()
        self.fault = pod_state.failure(found) if found else f"{self.job} was deleted"
        if self.fault:
            return True
        assert found is not None
        if self._launcher:
            self._missed += 1
            self.fault = f"pod {self._launcher} was deleted" if self._missed > MAX_MISSING else None
            return self.fault is not None
        if pod_state.suspended(found):
            self._print_once(f"{self.job} is waiting in its queue")
            self._begun = time.monotonic()
            return False
        return self._too_late()

    def _too_late(self) -> bool:
        """Whether the time-out for starting has passed; prints the cluster's warnings about the pods."""
        last = ""
        with contextlib.suppress(NoAnswer):  # reading events may be forbidden
            for last in self.job.warnings():
                self._print_once(last)
        self._doomed = time.monotonic() - self._begun > self.timeout
        if self._doomed:
            self.fault = f"{self.job} has not started in {self.timeout:g} s" + (last and f": {last}")
        return self._doomed

    def _delete(self) -> None:
        from meshrun.runner.errors import RunError

        try:
            self.job.delete()
        except NoAnswer as reason:
            raise RunError(
                f"{self.job} may still exist" + (f"; {self.fault}" if self.fault else ""),
                why=str(reason),
                hint=f"kubectl delete {self.job}",
            ) from reason

    def _broken(self) -> None:
        from meshrun.runner.errors import RunError

        if self.log.failures >= MAX_LOG_FAILURES:
            raise RunError(
                f"the log of {self._launcher} cannot be read; the job continues unobserved",
                got=self.log.reason,
                hint=f"kubectl auth can-i get pods/log; kubectl delete {self.job}",
            )

    def _unanswered(self, reason: NoAnswer) -> None:
        from meshrun.runner.errors import RunError

        if time.monotonic() - self._answered > ANSWER_TIMEOUT:
            raise RunError(
                f"no answer from the cluster for {ANSWER_TIMEOUT:g} s; {self.job} continues unobserved",
                why=str(reason),
                hint=f"kubectl cluster-info; kubectl delete {self.job}",
            )

    def _print_once(self, sentence: str) -> None:
        from meshrun.runner.errors import tell

        if sentence not in self._printed:
            self._printed.add(sentence)
            tell(sentence)


def _first(found: Iterable[str | None]) -> str | None:
    return next(filter(None, found), None)
