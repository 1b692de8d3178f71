"""What NCCL is asked for: each operation's calls as a stub of the library notes them, and what it answers.

The stub (stub_nccl.c) stands for libnccl.so.2 under NVIDIA's own bindings, in processes of their own that
have a CuPy of a few lines. No GPU is needed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from meshrun.runner.comm.collectives.api import DATATYPES, OPERATIONS, REDUCTIONS
from meshrun.runner.comm.collectives.call_batch import BUILT

COMPILER = shutil.which("cc") or shutil.which("gcc")

RANK = f"""
import ctypes, json, os, sys, threading, types
from types import SimpleNamespace as Some
ctypes.CDLL(sys.argv[1])  # nccl4py takes the libnccl.so.2 that is loaded already
log = os.environ["STUB_NCCL_LOG"]

def note(*words):
    with open(log, "a") as file:
        print(*words, file=file)

class CUDARuntimeError(RuntimeError):
    pass

def check_status(status):
    if status:
        raise CUDARuntimeError(f"cudaError {{status}}")

cupy = types.ModuleType("cupy")
runtime = Some(
    runtimeGetVersion=lambda: 13000,
    streamQuery=lambda stream: 0,
    check_status=check_status,
    CUDARuntimeError=CUDARuntimeError,
    memcpyAsync=lambda *numbers: note("memcpyAsync", *numbers),
    streamCaptureModeThreadLocal=1,
)
stream = Some(
    ptr=77,
    synchronize=lambda: note("synchronize"),
    begin_capture=lambda mode: note("begin_capture", mode),
    end_capture=lambda: Some(launch=lambda stream: note("launch", stream.ptr)),
)
cupy.cuda = Some(
    runtime=runtime,
    get_current_stream=lambda: stream,
    UnownedMemory=lambda *parts: parts,
    MemoryPointer=lambda *parts: parts,
)
cupy.ndarray = lambda *parts: parts
cupy.uint8 = "uint8"
sys.modules["cupy"] = cupy

from meshrun.runner.comm import nccl
from meshrun.runner.comm.collectives.api import DATATYPES, OPERATIONS, REDUCTIONS, Call, Pointer
from meshrun.runner.comm.nccl_transfers import NcclComm
from meshrun.runner.comm.collectives.nccl_calls import NcclCalls
from meshrun.runner.comm.collectives.nccl import NcclCollectives
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.errors import MeshrunError

def noted(function):
    "What a call made of: each function's name and numbers."
    open(log, "w").close()
    function()
    return [[word if word[0].isalpha() else int(word) for word in line.split()] for line in open(log)]

def refused(function, *arguments, **keywords):
    "The error that a call ends with."
    try:
        function(*arguments, **keywords)
    except (MeshrunError, MemoryError) as error:
        return type(error).__name__, getattr(error, "exit_code", None), str(error)
    return "nothing", 0, ""

def joined(rank, size, **config):
    return nccl.Communicator(size, rank, bytes(128), **config)

def calls(rank, size=4):
    return NcclCalls(joined(rank, size), 77)

send, recv = (Pointer(Some(address=address), 16) for address in ({1 << 20}, {1 << 24}))
def tell(value):
    print(json.dumps(value))
"""
SEND, RECV = (1 << 20) + 16, (1 << 24) + 16
COMM, STREAM, UNDEFINED = 0xC0, 77, -(1 << 31)
Note = list[Any]


@dataclass(frozen=True)
class Stub:
    """The library compiled, and a folder for what it notes."""

    library: Path
    folder: Path

    def run(self, body: str, version: int = 22809, **settings: str) -> Any:
        """What `body` tells, in a process where the stub has these settings."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        names = {f"STUB_NCCL_{name}": value for name, value in settings.items()}
        done = subprocess.run(
            [sys.executable, "-c", RANK + body, str(self.library)],
            cwd=self.folder,
            env={**os.environ, **names, "STUB_NCCL_VERSION": str(version), "STUB_NCCL_LOG": str(log)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Stub:
    if importlib.util.find_spec("nccl") is None:
        pytest.skip("needs nccl4py")
    if COMPILER is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("stub")
    library, source = folder / "libnccl.so.2", Path(__file__).with_name("stub_nccl.c")
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-Wl,-soname,libnccl.so.2"]
    subprocess.run([COMPILER, *flags, str(source), "-o", str(library)], check=True)
    return Stub(library, folder)


# Each operation's calls: 4 ranks, 6 doubles, root 2

RANKS, COUNT, DOUBLE, CHOSEN = 4, 6, 8, 2
STEP = COUNT * 8  # bytes
TRAFFIC = ((1, 0, 3, 2), (0, 0, 5, 1), (2, 2, 0, 0), (0, 4, 1, 7))  # elements, [from][to]
OLD, NATIVE = 22700, 22800  # the first without, the second with alltoall, gather and scatter

EVERY_OPERATION = f"""
def bound(operation, rank, in_place=False):
    given = Pointer(recv.buffer, recv.offset + rank * {STEP}) if in_place else send
    double = DATATYPES["double"]
    call = Call(operation, given, recv, {COUNT}, double, "max", {CHOSEN}, in_place, {TRAFFIC})
    one = calls(rank)
    made, packed = one.bind(call), one.packed([one.bind(call)] * 2)
    return noted(made), noted(lambda: [part() for part in packed]), [type(part).__name__ for part in packed]

def both(operation):
    return {{place: [bound(operation, rank, place == "in") for rank in range(4)] for place in ("out", "in")}}

tell({{operation: both(operation) for operation in OPERATIONS}})
"""


@pytest.fixture(scope="module", params=[OLD, NATIVE])
def every_operation(request: pytest.FixtureRequest, stub: Stub) -> tuple[int, dict[str, Any]]:
    return request.param, stub.run(EVERY_OPERATION, version=request.param)


def group(*calls: Note) -> list[Note]:
    return [["ncclGroupStart"], *calls, ["ncclGroupEnd"]]


def to(peer: int, address: int, count: int) -> Note:
    return ["ncclSend", address, count, DOUBLE, peer, COMM, STREAM]


def of(peer: int, address: int, count: int) -> Note:
    return ["ncclRecv", address, count, DOUBLE, peer, COMM, STREAM]


def expected(operation: str, rank: int, send: int, native: bool) -> list[Note]:
    """What nccl-tests calls: one function, messages in a group, or hypercube's steps."""
    whole, end, maximum = [send, RECV, COUNT, DOUBLE], [COMM, STREAM], REDUCTIONS.index("max")
    alone = {
        "all_reduce": ["ncclAllReduce", *whole, maximum, *end],
        "all_gather": ["ncclAllGather", *whole, *end],
        "reduce_scatter": ["ncclReduceScatter", *whole, maximum, *end],
        "broadcast": ["ncclBroadcast", *whole, CHOSEN, *end],
        "reduce": ["ncclReduce", *whole, maximum, CHOSEN, *end],
    }
    if native:
        alone["alltoall"] = ["ncclAlltoAll", *whole, *end]
        alone["gather"] = ["ncclGather", *whole, CHOSEN, *end]
        alone["scatter"] = ["ncclScatter", *whole, CHOSEN, *end]
    if operation in alone:
        return [alone[operation]]
    return hypercube(rank, send) if operation == "hypercube" else group(*messages(operation, rank, send))


def messages(operation: str, rank: int, send: int) -> list[Note]:
    peers, at_root = range(RANKS), range(RANKS if rank == CHOSEN else 0)
    if operation == "sendrecv":
        return [to((rank + 1) % RANKS, send, COUNT), of((rank + 3) % RANKS, RECV, COUNT)]
    if operation == "gather":
        return [to(CHOSEN, send, COUNT), *(of(peer, RECV + peer * STEP, COUNT) for peer in at_root)]
    if operation == "scatter":
        return [*(to(peer, send + peer * STEP, COUNT) for peer in at_root), of(CHOSEN, RECV, COUNT)]
    table = TRAFFIC if operation == "alltoallv" else [[COUNT] * RANKS] * RANKS
    sent = [to(peer, send + 8 * sum(table[rank][:peer]), table[rank][peer]) for peer in peers]
    columns = [[row[rank] for row in table[:peer]] for peer in peers]
    received = [of(peer, RECV + 8 * sum(columns[peer]), table[peer][rank]) for peer in peers]
    return [note for pair in zip(sent, received, strict=True) for note in pair if note[2]]


def hypercube(rank: int, send: int) -> list[Note]:
    own, steps = RECV + rank * STEP, list[Note]()
    for bit in (1, 2):
        peer, mine = rank ^ bit, rank // bit * bit
        going, coming = RECV + mine * STEP, RECV + (mine ^ bit) * STEP
        steps += group(to(peer, going, COUNT * bit), of(peer, coming, COUNT * bit))
    return steps if send == own else [["memcpyAsync", own, send, STEP, 3, STREAM], *steps]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation(every_operation: tuple[int, dict[str, Any]], operation: str) -> None:
    version, found = every_operation
    for rank in range(RANKS):
        for place, send in (("out", SEND), ("in", RECV + rank * STEP)):
            wanted = expected(operation, rank, send, version >= NATIVE)
            made, packed, parts = found[operation][place][rank]
            assert made == wanted, f"rank {rank}, {place} of place"
            assert packed == 2 * wanted, f"rank {rank}, {place} of place"
            if BUILT:  # hypercube's copy is CUDA's
                copied = ["partial", "Batch"] * 2 if wanted and wanted[0][0] == "memcpyAsync" else ["Batch"]
                assert parts == (copied if wanted else [])


def test_a_hypercube_by_hand(every_operation: tuple[int, dict[str, Any]]) -> None:
    """Rank 2 of 4: its own block to 3, then blocks 2 and 3 to 0."""
    assert every_operation[1]["hypercube"]["in"][2][0] == [
        *group(to(3, RECV + 2 * STEP, 6), of(3, RECV + 3 * STEP, 6)),
        *group(to(0, RECV + 2 * STEP, 12), of(0, RECV, 12)),
    ]


def test_nothing_to_gather_and_scatter(stub: Stub) -> None:
    body = """
nothing = lambda name: Call(name, send, recv, 0, DATATYPES["float"], root=0)
tell([noted(calls(0).bind(nothing(name))) for name in ("gather", "scatter")])
"""
    assert stub.run(body) == [[], []]


def test_datatypes_and_reductions(stub: Stub) -> None:
    body = """
one = calls(0)
tell([
    noted(one.bind(Call("all_reduce", send, recv, 5, datatype, reduction)))[-1][4:6]
    for datatype in DATATYPES.values() for reduction in REDUCTIONS[:5]
])
"""
    codes = [list(range(12)), list(range(5))]  # ncclDataType_t; ncclSum, Prod, Max, Min, Avg
    assert stub.run(body) == [[datatype, reduction] for datatype in codes[0] for reduction in codes[1]]


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_mulsum_is_one_operator_for_each_datatype(stub: Stub, rank: int) -> None:
    body = f"""
one = calls({rank})
def twice():
    for datatype in DATATYPES.values():
        for operation in ("all_reduce", "reduce_scatter", "reduce"):
            one.bind(Call(operation, send, recv, 5, datatype, "mulsum"))()
tell([noted(twice), noted(one.close)])
"""
    made, ended = stub.run(body)
    operators = [note for note in made if note[0] == "ncclRedOpCreatePreMulSum"]
    assert [note[3:] for note in operators] == [[code, 1, COMM] for code in range(12)]  # 1: a host value
    for (_, _, bits, *_), datatype in zip(operators, DATATYPES.values(), strict=True):
        kind = np.dtype(getattr(ml_dtypes, datatype.numpy, datatype.numpy))
        scalar = np.frombuffer(bits.to_bytes(8, "little"), kind)[0]
        assert scalar == (2 if rank % 2 else 1), datatype.name
    reductions = [note for note in made if note[0] in ("ncclAllReduce", "ncclReduceScatter", "ncclReduce")]
    assert [note[5] for note in reductions] == [note[1] for note in operators for _ in range(3)]
    assert ended == [["ncclRedOpDestroy", note[1], COMM] for note in operators]


def test_groups_in_groups_and_messages(stub: Stub) -> None:
    body = """
one = calls(1)
call = Call("sendrecv", send, recv, 6, DATATYPES["double"])
to, of, both = one.message(call, send_to=3), one.message(call, receive_from=0), one.message(
    call, send_to=2, receive_from=2
)
tell(noted(one.grouped([to, one.grouped([of, both])])))
"""
    assert stub.run(body) == group(
        *group(to(3, SEND, 6)), *group(*group(of(0, RECV, 6)), *group(to(2, SEND, 6), of(2, RECV, 6)))
    )


@pytest.mark.parametrize(("version", "allowed"), [(22304, False), (22400, True)])
def test_8_bit_floats_need_a_library_that_has_them(stub: Stub, version: int, allowed: bool) -> None:
    body = """
one = calls(0)
tell([refused(one.bind, Call("all_gather", send, recv, 5, DATATYPES[name])) for name in ("f8e4m3", "f8e5m2")])
"""
    for (kind, _, sentence), name in zip(stub.run(body, version), ("f8e4m3", "f8e5m2"), strict=True):
        if allowed:
            assert kind == "nothing"
        else:
            assert kind == "UserError"
            assert f"got {name} with NCCL 2.23.4, expected NCCL 2.24 or later" in sentence


# One rank of a communicator, with its memory

ALONE = """
opened = NcclCollectives(ThreadComm(), stream)
here = lambda count=6, operation="all_reduce": Call(operation, send, recv, count, DATATYPES["double"])
"""


@pytest.mark.parametrize(
    ("version", "config", "policy", "central", "peers"),
    [
        (22700, {}, UNDEFINED, UNDEFINED, UNDEFINED),
        (22700, {"cta_policy": 0, "peers": 2}, 0, UNDEFINED, UNDEFINED),
        (22809, {"cta_policy": 2, "peers": 2}, 2, 1, UNDEFINED),
        (23203, {"peers": 2}, UNDEFINED, 1, 2),
        (23203, {}, UNDEFINED, 1, UNDEFINED),
    ],
)
def test_config_by_version(
    stub: Stub, version: int, config: dict[str, int], policy: int, central: int, peers: int
) -> None:
    """As nccl-tests sets it, from the version on that has the field."""
    body = f"tell(noted(lambda: NcclCollectives(ThreadComm(), stream, **{config})))"
    made = stub.run(body, version)
    assert made == [["ncclGetUniqueId"], ["ncclCommInitRankConfig", 1, 7, 0, policy, central, peers]]


def test_a_cta_policy_needs_a_library_that_has_it(stub: Stub) -> None:
    kind, _, sentence = stub.run("tell(refused(joined, 0, 1, cta_policy=1))", 22605)
    assert kind == "UserError"
    assert "got NCCL 2.26.5, expected 2.27.0 or later" in sentence


def test_memory_and_registration_from_the_first_to_the_last(stub: Stub) -> None:
    body = f"""{ALONE}
def use():
    memory = opened.allocate(1000)
    opened.allocate(0)
    for how in (1, 2):
        opened.register(memory, how)
    opened.bind(Call("reduce", send, recv, 1, DATATYPES["float"], "mulsum"))
tell([noted(use), noted(opened.close)])
"""
    used, closed = stub.run(body)
    first, second = 0x100000, 0x200000
    assert used[:4] == [
        ["ncclMemAlloc", 1000],
        ["ncclMemAlloc", 1],
        ["ncclCommRegister", COMM, first, 1000],
        ["ncclCommWindowRegister", COMM, first, 1000, 1],  # NCCL_WIN_COLL_SYMMETRIC
    ]
    assert closed == [
        ["synchronize"],
        ["ncclRedOpDestroy", 5, COMM],
        ["ncclCommDeregister", COMM, 1000],
        ["ncclCommWindowDeregister", COMM, 1001],
        ["ncclCommDestroy", COMM],
        ["ncclMemFree", first],
        ["ncclMemFree", second],
    ]


def test_symmetric_registration_is_refused_where_there_is_none(stub: Stub) -> None:
    """nccl-tests takes the local one instead; a figure would be taken for the other."""
    body = f"{ALONE}\ntell([refused(opened.register, opened.allocate(8), how) for how in (1, 2)])"
    local, symmetric = stub.run(body, 22605)
    assert local[0] == "nothing"
    assert symmetric[:2] == ["UserError", 2]
    assert "got NCCL 2.26.5, expected 2.27.0 or later. Try: -R 1" in symmetric[2]


def test_a_graph_is_recorded_once_and_launched(stub: Stub) -> None:
    body = f"""{ALONE}
graph = []
recorded = noted(lambda: graph.append(opened.captured([opened.bind(here())])))
tell([recorded, noted(lambda: opened.issue(graph * 2))])
"""
    recorded, launched = stub.run(body)
    assert [note[0] for note in recorded] == ["begin_capture", "ncclAllReduce"]
    assert launched == [["launch", STREAM]] * 2


# What fails


@pytest.mark.parametrize("way", ["issue", "captured", "packed"])
def test_a_refused_call_ends_with_the_librarys_last_words(stub: Stub, way: str) -> None:
    body = f"""{ALONE}
calls = [opened.bind(here())]
if {way!r} == "packed":
    calls = opened.packed([*calls, opened.bind(here(operation="sendrecv"))])
tell(refused(opened.captured if {way!r} == "captured" else opened.issue, calls))
"""
    kind, status, sentence = stub.run(body, FAIL="ncclAllReduce", WORDS="Connect to 10.0.0.7 failed\n")
    assert (kind, status) == ("NcclFailure", 3)
    for words in ("NCCL failed while starting an operation", "internal error: Connect to 10.0.0.7 failed"):
        assert words in sentence


@pytest.mark.parametrize("name", ["ncclGetUniqueId", "ncclCommInitRankConfig"])
def test_joining_fails(stub: Stub, name: str) -> None:
    kind, status, _ = stub.run("tell(refused(NcclCollectives, ThreadComm(), stream))", FAIL=name)
    assert (kind, status) == ("NcclFailure", 3)


@pytest.mark.parametrize(
    ("words", "kind"),
    [("Cuda failure 2 'out of memory'", "MemoryError"), ("Cuda failure 999 'unknown'", "NcclFailure")],
)
def test_no_memory(stub: Stub, words: str, kind: str) -> None:
    body = f"{ALONE}\ntell(refused(opened.allocate, 12345))"
    found, _, sentence = stub.run(body, FAIL="ncclMemAlloc", RESULT="1", WORDS=words)
    assert found == kind
    assert "12345 bytes" in sentence


@pytest.mark.parametrize(("code", "kind"), [(0, "nothing"), (7, "nothing"), (6, "NcclFailure")])
def test_failures_in_the_background(stub: Stub, code: int, kind: str) -> None:
    """Asked for while the stream is busy, not only when it is done; 7 is ncclInProgress."""
    body = f"""{ALONE}
looks = []
runtime.streamQuery = lambda stream: 0 if len(looks) == 3 else 600
outcome = refused(opened.wait, lambda: looks.append(1))
tell([outcome, len(looks)])
"""
    (found, _, sentence), looks = stub.run(body, ASYNC=str(code), WORDS="a rank is gone")
    assert found == kind
    assert looks == (0 if code == 6 else 3)
    assert ("a rank is gone" in sentence) == (code == 6)


def test_other_threads_go_on_while_one_waits(stub: Stub) -> None:
    """The watchdog's must. A poll keeps Python's lock, as CuPy's does; a look lets go of it for a moment."""
    body = f"""{ALONE}
import select, time
ended = []
def others():
    steps = 0
    while steps < 200 and time.monotonic() - began < 20:
        select.select([], [], [], 0.001)
        steps += 1
    ended.append(steps)
keeps = ctypes.PyDLL(None).sched_yield
runtime.streamQuery = lambda stream: keeps() or (0 if ended else 600)
opened.comm.check = ctypes.CDLL(None).getpid
began = time.monotonic()
threading.Thread(target=others).start()
opened.wait()
tell(ended[0])
"""
    assert stub.run(body) == 200


def test_cuda_fails_meanwhile(stub: Stub) -> None:
    body = f"{ALONE}\nruntime.streamQuery = lambda stream: 700\ntell(refused(opened.wait))"
    kind, status, sentence = stub.run(body)
    assert (kind, status) == ("CudaFailure", 2)
    assert "cudaError 700" in sentence


def test_cuda_refuses_a_call(stub: Stub) -> None:
    """hypercube's copy is CUDA's."""
    body = f"""{ALONE}
def refuse(*numbers):
    raise CUDARuntimeError("invalid argument")
runtime.memcpyAsync = refuse
tell(refused(opened.issue, [opened.bind(here(operation="hypercube"))]))
"""
    kind, status, sentence = stub.run(body)
    assert (kind, status) == ("CudaFailure", 2)
    assert "invalid argument" in sentence


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("block", ["ncclAllReduce", "ncclGroupEnd", ""])
def test_abort_from_another_thread(stub: Stub, block: str, packed: bool) -> None:
    """Inside NCCL, or waiting for the stream; what is given up leaves no result behind."""
    body = f"""{ALONE}
import time
queries, outcome = [], []
def query(stream):  # an aborted kernel ends like another
    queries.append(1)
    return 0 if "ncclCommAbort" in open(log).read() else 600
runtime.streamQuery = query

def work():
    calls = [opened.grouped([opened.bind(here())])]
    opened.issue(opened.packed(calls) if {packed} else calls)
    opened.wait()
    outcome.append("a result")

worker = threading.Thread(target=work, daemon=True)
worker.start()
while {block!r} not in open(log).read() if {block!r} else not queries:
    time.sleep(0.001)
opened.abort()
worker.join(0.5)
opened.abort()
tell([outcome, worker.is_alive(), open(log).read().split().count("ncclCommAbort")])
"""
    assert stub.run(body, BLOCK=block) == [[], True, 1]


# The library itself


def test_one_library_and_two(stub: Stub) -> None:
    copy = stub.folder / "other" / "libnccl.so.2"
    copy.parent.mkdir()
    shutil.copy(stub.library, copy)
    body = f"""
label = nccl.common_version(ThreadComm())
ctypes.CDLL({str(copy)!r})
tell([label, refused(nccl.common_version, ThreadComm())])
"""
    label, (kind, _, sentence) = stub.run(body)
    assert label == f"NCCL 2.28.9 ({stub.library})"
    assert kind == "UserError"
    assert "two copies of libnccl" in sentence
    assert str(stub.library) in sentence
    assert str(copy) in sentence


AMONG_THREE = """
me = threading.local()
def rank_main(control):
    me.rank = control.rank
    try:
        nccl.common_version(control)
    except nccl.UserError as error:
        return error.everywhere, str(error)
"""


def test_ranks_with_different_versions(stub: Stub) -> None:
    body = f"""{AMONG_THREE}
nccl.version = lambda: ["2.28.9", "2.28.9", "2.27.3"][me.rank]
tell(run_ranks(3, rank_main))
"""
    for everywhere, sentence in stub.run(body):
        assert everywhere
        assert "different versions of NCCL: got 2.28.9" in sentence
        assert "on rank 0, 2.27.3" in sentence
        assert "on rank 2" in sentence


def test_two_copies_on_one_rank_stop_all(stub: Stub) -> None:
    body = f"""{AMONG_THREE}
def library_path():
    if me.rank == 1:
        raise nccl.UserError("two copies")
    return "/a/libnccl.so.2"
nccl.library_path = library_path
tell(run_ranks(3, rank_main))
"""
    assert stub.run(body) == [[True, "[rank 1] two copies"]] * 3


def test_a_library_that_is_too_old(stub: Stub) -> None:
    kind, _, sentence = stub.run("tell(refused(nccl.load))", 21805)
    assert kind == "UserError"
    assert "got NCCL 2.18.5" in sentence
    assert "expected 2.19.0 or later. Try: pip install 'meshrun[cuda13]'" in sentence


def test_bindings_that_are_not_there(stub: Stub) -> None:
    kind, _, sentence = stub.run("sys.modules['nccl'] = None\ntell(refused(nccl.load))")
    assert kind == "UserError"
    assert "nccl4py is not installed" in sentence


# Arrays of jobs


def test_arrays_cross_as_bytes_and_are_reduced_in_place(stub: Stub) -> None:
    body = """
import numpy

def array(address, size, dtype, itemsize):
    flags = Some(c_contiguous=True)
    return Cells(data=Some(ptr=address), size=size, dtype=dtype, nbytes=size * itemsize, flags=flags)

class Cells(Some):
    def view(self, dtype):
        size = numpy.dtype(dtype).itemsize
        return array(self.data.ptr, self.nbytes // size, dtype, size)

    def astype(self, dtype):
        return array(self.data.ptr + 1000, self.size, dtype, numpy.dtype(dtype).itemsize)

    def __setitem__(self, cells, values):
        note("copied", values.data.ptr, self.data.ptr)

comm = NcclComm(ThreadComm())
tell([
    comm.label,
    noted(lambda: comm.exchange([(1, array(100, 3, "float64", 8))], [(2, array(200, 5, "int16", 2))])),
    noted(lambda: comm.exchange([], [])),
    noted(lambda: comm.all_reduce(array(300, 7, "float16", 2), "max")),
    refused(comm.all_reduce, array(300, 7, "complex64", 8), "prod"),
    noted(lambda: comm.all_reduce(array(300, 7, "complex64", 8), "sum")),
    noted(lambda: comm.all_reduce(array(300, 7, "int16", 2), "sum")),
    noted(lambda: comm.all_reduce(array(300, 7, "bool", 1), "sum")),
    noted(lambda: comm.all_reduce(array(300, 7, "bool", 1), "prod")),
    noted(comm.close),
])
"""
    label, exchanged, nothing, reduced, refused, parts, wide, either, both, closed = stub.run(body)
    assert label == f"NCCL 2.28.9 ({stub.library})"
    assert exchanged == group(
        ["ncclRecv", 200, 10, 1, 2, COMM, STREAM], ["ncclSend", 100, 24, 1, 1, COMM, STREAM]
    )
    assert nothing == []
    assert reduced == [["ncclAllReduce", 300, 300, 7, 6, 2, COMM, STREAM]]
    assert refused[0] == "UserError"
    # Types that NCCL lacks: the parts of complex numbers, wider integers, the larger or smaller of two bools.
    assert parts == [["ncclAllReduce", 300, 300, 14, 7, 0, COMM, STREAM]]
    assert wide == [["ncclAllReduce", 1300, 1300, 7, 2, 0, COMM, STREAM], ["copied", 1300, 300]]
    assert either == [["ncclAllReduce", 300, 300, 7, 1, 2, COMM, STREAM]]
    assert both == [["ncclAllReduce", 300, 300, 7, 1, 3, COMM, STREAM]]
    assert closed == [["synchronize"], ["ncclCommDestroy", COMM]]


def test_a_communicator_opens_at_the_first_message(stub: Stub) -> None:
    """NCCL is loaded then, with the defaults of variables that are not set; one that nobody used needs no
    close."""
    body = """
os.environ["NCCL_B"] = "of the user"
seen = []
opening = nccl.Communicator

def communicator(*about):
    seen.append([os.environ.get(name) for name in ("NCCL_A", "NCCL_B")])
    return opening(*about)

nccl.Communicator = communicator
variables = {"NCCL_A": "1", "NCCL_B": "2"}
unused, comm = (NcclComm(ThreadComm(), later=True, variables=variables) for _ in range(2))
before = [comm.is_open, len(seen), comm.label, nccl.load.cache_info().currsize]
closed = noted(unused.close)
comm.exchange([], [])
comm.all_reduce(Some(data=Some(ptr=3), size=7, dtype="float16", flags=Some(c_contiguous=True)), "max")
tell([before, closed, comm.is_open, comm.label, seen, "NCCL_A" in os.environ, noted(comm.close)])
"""
    before, closed, is_open, label, seen, left, ended = stub.run(body)
    assert before == [False, 0, "NCCL, not opened", 0]
    assert label == f"NCCL 2.28.9 ({stub.library})"
    assert closed == [["synchronize"]]
    assert (is_open, seen, left) == (True, [["1", "of the user"]], False)
    assert ended == [["synchronize"], ["ncclCommDestroy", COMM]]


def test_small_arrays_in_the_main_stream_are_reduced_without_nccl(stub: Stub) -> None:
    """NCCL is not even opened for them."""
    body = """
import numpy
from meshrun.runner.comm import nccl_transfers

class Small:
    def all_reduce(self, array, operation):
        note("small", array.data.ptr, operation)

    def close(self):
        note("closed")

def array(address, nbytes):
    about = Some(ptr=address), numpy.dtype("uint64"), Some(c_contiguous=True)
    return Some(data=about[0], dtype=about[1], flags=about[2], nbytes=nbytes, size=nbytes // 8)

def reduced(comm):
    return noted(lambda: [comm.all_reduce(array(100 + nbytes, nbytes), "max") for nbytes in (8, 1 << 20)])

nccl_transfers.open_small = lambda control, backend: Small()
main, other = (Some(stream=Some(ptr=pointer)) for pointer in (stream.ptr, stream.ptr + 1))
comms = [NcclComm(ThreadComm(), later=True, backend=backend) for backend in (main, other)]
comms[0].all_reduce(array(1, 8), "sum")
before = comms[0].is_open
nccl_transfers.open_small = lambda control, backend: None
comms.append(NcclComm(ThreadComm(), later=True, backend=main))
for comm in comms:
    comm.all_reduce(array(1, 1 << 20), "sum")
tell([before, *map(reduced, comms), noted(comms[0].close)])
"""
    before, small, other, unreachable, closed = stub.run(body)
    large = ["ncclAllReduce", 100 + (1 << 20), 100 + (1 << 20), 1 << 17, 5, 2, COMM, STREAM]
    assert not before
    assert small == [["small", 108, "max"], large]
    assert other == unreachable == [["ncclAllReduce", 108, 108, 1, 5, 2, COMM, STREAM], large]
    assert closed == [["synchronize"], ["closed"], ["ncclCommDestroy", COMM]]


def test_the_log_is_on_only_while_choices_are_observed(stub: Stub) -> None:
    """The variables of the user are as before, and no call outside adds to the list."""
    body = (
        ALONE
        + """
call = opened.bind(here(16))
call()
with opened.observed() as first:
    call()
    opened.bind(here(80))()
call()
with opened.observed() as second:
    pass
tell([[vars(one) for one in first], second, os.environ["NCCL_DEBUG"], "NCCL_DEBUG_FILE" in os.environ])
"""
    )
    found = [{"algorithm": "Ring", "protocol": "Simple", "channels": channels} for channels in (3, 11)]
    changed = "os.environ['NCCL_DEBUG'] = 'WARN'; os.environ.pop('NCCL_DEBUG_FILE', None)\n"
    assert stub.run(changed + body) == [found, [], "WARN", False]


def test_a_communicator_s_own_tuning(stub: Stub) -> None:
    """Its variables are set only while it opens; what NCCL does not have fails at the first call."""
    body = """
from meshrun.runner.comm.collectives.api import NcclTuning
os.environ["NCCL_ALGO"] = "NVLS"
def made(tuning):
    one = NcclCollectives(ThreadComm(), stream, tuning=tuning)
    with one.observed() as choices:
        error = refused(one.issue, [one.bind(Call("all_reduce", send, recv, 8, DATATYPES["float"]))])
    left = os.environ["NCCL_ALGO"], "NCCL_PROTO" in os.environ
    return [*map(vars, choices), error[:2], *left]
joining = noted(lambda: joined(0, 4, tuning=NcclTuning(channels=12)))
tunings = NcclTuning("TREE", "LL"), None, NcclTuning(), NcclTuning("TREE", "LL128")
tell([*map(made, tunings), joining])
"""
    left = [["nothing", 0], "NVLS", False]

    def chosen(algorithm: str, protocol: str) -> dict[str, Any]:
        return {"algorithm": algorithm, "protocol": protocol, "channels": 2}

    *found, joining = stub.run(body)
    assert found == [
        [chosen("Tree", "LL"), *left],
        [chosen("NVLS", "Simple"), *left],  # the environment's
        [chosen("Ring", "Simple"), *left],  # NCCL's own, in spite of the environment
        [["NcclFailure", 3], "NVLS", False],
    ]
    assert joining[0] == ["config", 12, 12]
