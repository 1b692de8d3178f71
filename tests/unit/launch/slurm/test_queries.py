"""What Slurm's answers say of a job."""

from __future__ import annotations

from meshrun.launch.slurm.queries import JobState, states

SHOWN = """\
JobId=17 JobName=my run
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=COMPLETING Reason=NodeDown Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   NodeList=c2
   BatchHost=c1
   StdOut=/my work/meshrun-17.out

"""
ARRAY = """\
JobId=2 ArrayJobId=2 ArrayTaskId=2-3%2 ArrayTaskThrottle=2 JobName=meshrun
   JobState=PENDING Reason=JobArrayTaskLimit Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=
   StdOut=/tmp/meshrun-2_4294967294.out

JobId=4 ArrayJobId=2 ArrayTaskId=1 ArrayTaskThrottle=2 JobName=meshrun
   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=1:0
   NodeList=c1
   StdOut=/tmp/meshrun-2_1.out
"""


def test_what_slurm_says_of_a_job() -> None:
    expected = JobState("17", "COMPLETING", "NodeDown", "0:0", "c2", "17", "my run")
    assert states(SHOWN) == [expected]
    assert not expected.over


def test_what_slurm_says_of_an_array() -> None:
    waiting, failed = states(ARRAY)
    assert (waiting.id, waiting.state, waiting.over) == ("2_[2-3%2]", "PENDING", False)
    assert failed == JobState("2_1", "FAILED", "NonZeroExitCode", "1:0", "c1", "4", "meshrun")
    assert failed.over
    assert not failed.succeeded
