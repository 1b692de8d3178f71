"""Ranks that are processes of their own for a program that no launcher has started, such as a notebook.

`open_world(ranks=4)` starts them by `meshrun -n 4`, as `job.run(..., ranks=4)` does. The program is one
process: an operation on one of its arrays is sent to all ranks, which compute it as in a program of theirs.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import secrets
import subprocess
import threading
import time
import weakref
from collections import deque
from functools import partial
from multiprocessing.connection import Connection, Listener, wait
from types import MethodType, TracebackType
from typing import Any, cast

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.options.choices import DeviceChoice
from meshrun.runner.options.run_options import Options
from meshrun.runner.run import python_call
from meshrun.runner.run.main_program.checkpoint import calling_program
from meshrun.runner.run.main_program.rank_server import Reader, serve_program
from meshrun.runner.run.main_program.remote_array import RemoteArray, RemoteIterator, of_one_rank
from meshrun.runner.spelling import command_option

START = 120.0  # seconds in which ranks connect
GRACE = 10.0  # seconds from the error of one rank to the answers of the others
NEW_ARRAYS = ("load", "save", "zeros", "ones", "full", "empty", "arange", "linspace", "array")
OF_PROCESSES = ("from_local", "control", "arrays", "backend", "xp", "grid", "on_root", "collective_call")


class ProcessWorld:
    """Ranks in processes of their own, with the arrays that are split over them; from `open_world(ranks=4)`.

    It has the methods of the world of a program that mpirun has started: `load`, `save`, `zeros`, `ones`,
    `full`, `empty`, `arange`, `linspace` and `array`.

    Attributes
    ----------
    size : int
        The number of ranks.
    rank : int
        0: this process speaks for all ranks.
    """

    rank = 0

    def __init__(self, ranks: int, device: DeviceChoice, oversubscribe: bool, resume: bool) -> None:
        self.size = ranks
        self._objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._dropped: deque[int] = deque()  # numbers of arrays that the program has no more
        self._waiting: dict[Any, int] = {}  # connections of the ranks that have yet to answer
        self._answers: dict[int, tuple[bool, Any]] = {}
        self._lock = threading.RLock()
        self._ended = threading.Event()
        key = secrets.token_hex(16)
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(python_call.call_folder(0))
            listener = stack.enter_context(
                Listener(("127.0.0.1", 0), backlog=ranks, authkey=bytes.fromhex(key))
            )
            self._start(ranks, listener.address[1], key, Options(device=device, oversubscribe=oversubscribe))
            stack.callback(self._end_processes)
            self._connections = self._accepted(listener, ranks)
            self.call("resume", resume, calling_program())
            self._stack = stack.pop_all()

    def _start(self, ranks: int, port: int, key: str, options: Options) -> None:
        """Start the ranks, which connect to a port."""
        call = python_call.PythonCall(serve_program, [f"{port} {key}"], [], {}, options)
        python_call.write_call(self._folder, call)
        unwatched = command_option("stall_timeout", 0)  # a program may ask for nothing for hours
        words = [*unwatched.split(), "-n", str(ranks), "call", str(self._folder)]
        self._process = subprocess.Popen(
            [*python_call.PROGRAM, *words],
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="backslashreplace",
            start_new_session=True,  # Ctrl-C interrupts the program, which goes on
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(
            target=python_call.forward, args=(self._process.stderr, self._lines), daemon=True
        )
        self._reader.start()

    def _accepted(self, listener: Listener, ranks: int) -> list[Connection]:
        """Return the connections of the ranks, in their order. Raises the error of ranks that end before."""
        found: dict[int, Connection] = {}

        def accept() -> None:
            with contextlib.suppress(OSError, EOFError):
                while len(found) < ranks:
                    connection = listener.accept()
                    found[connection.recv()] = connection

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        deadline = time.monotonic() + START
        while thread.is_alive():
            thread.join(0.02)
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise self._failure()
        if len(found) < ranks:
            raise self._failure()
        return [found[rank] for rank in range(ranks)]

    def _failure(self) -> BaseException:
        """Return the error that ended the ranks."""
        status = self._end_processes()
        return python_call.error_of(self._folder, status, self._lines)

    def _end_processes(self) -> int:
        for connection in getattr(self, "_connections", ()):
            connection.close()
        try:
            status = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            status = self._process.wait()
        self._reader.join(GRACE)
        return status

    def call(self, what: Any, *arguments: Any, **options: Any) -> Any:
        """Have every rank call a function, and return its result.

        what: a function, or "world NAME" and the like, of `rank_server`. Raises what the ranks raise.
        """
        with self._lock:
            if self._ended.is_set():
                raise UserError("the world is closed", hint=f"meshrun.open_world(ranks={self.size})")
            if self._waiting:  # for the answers to a call that was interrupted
                with contextlib.suppress(Exception):
                    self._answer()
            dropped = [self._dropped.popleft() for _ in range(len(self._dropped))]
            if isinstance(what, Job | MethodType):
                what = python_call.pickled(what, cast(Job, getattr(what, "__self__", what)))
            data = pickle.dumps((os.getcwd(), dropped, _written((what, arguments, options))))
            try:
                for connection in self._connections:
                    connection.send_bytes(data)
            except OSError as reason:
                self._ended.set()
                raise self._failure() from reason
            self._answers = {}
            self._waiting = {connection: rank for rank, connection in enumerate(self._connections)}
            return self._answer()

    def _answer(self) -> Any:
        """Return the result of the command that was sent; raise its error."""
        deadline = None
        while self._waiting:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            ready = wait([*self._waiting], left)
            if not ready:
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                try:
                    data = connection.recv_bytes()
                except (EOFError, OSError) as reason:
                    self._ended.set()
                    raise self._failure() from reason
                self._answers[self._waiting.pop(connection)] = self._read(data)
                if deadline is None and not all(done for done, _ in self._answers.values()):
                    deadline = time.monotonic() + GRACE
        failed = next((value for done, value in self._answers.values() if not done), None)
        if failed is None:
            return self._answers.pop(0)[1]
        if self._waiting or any(done for done, _ in self._answers.values()):
            self._waiting = {}
            self.close()  # the other ranks are elsewhere
        raise failed

    def _read(self, answer: bytes) -> Any:
        return Reader(answer, self.object_at).load()

    def object_at(self, described: Any) -> Any:
        kind, shape, dtype, number = described
        known = self._objects.get(number)
        if known is None:
            known = RemoteIterator(self) if kind == "iterator" else RemoteArray(self, shape, np.dtype(dtype))
            known.number = number
            self._objects[number] = known
            weakref.finalize(known, self._dropped.append, number).atexit = False
        return known

    def __getattr__(self, name: str) -> Any:
        if name in OF_PROCESSES:
            raise of_one_rank(
                f"world.{name}", "world.array(a) and u.gather(), or mpirun -n N python3 FILE.py"
            )
        if name.startswith("_") or name not in NEW_ARRAYS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return partial(self.call, f"world {name}")

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *NEW_ARRAYS])

    def __repr__(self) -> str:
        return f"<world of {self.size} ranks, processes of this machine>"

    def __enter__(self) -> ProcessWorld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if failure is None and not self._ended.is_set():
            self.call("end")
        self.close()

    def close(self) -> None:
        """End the ranks; a second call does nothing."""
        self._ended.set()
        self._stack.close()


class _Writer(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.number if isinstance(value, RemoteArray | RemoteIterator) else None


def _written(call: Any) -> bytes:
    with io.BytesIO() as file:
        try:
            _Writer(file).dump(call)
        except (pickle.PicklingError, TypeError, AttributeError) as reason:
            raise UserError(
                "an argument cannot be sent to the ranks, which are other processes", why=reason
            ) from reason
        return file.getvalue()
