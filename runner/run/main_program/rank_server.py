"""A rank that computes for a program in another process, such as a notebook: it does what the program asks.

Each rank has a connection to the program, and gets the same commands in the same order. Distributed arrays
stay here: the program has their numbers.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields
from multiprocessing.connection import Client
from typing import Any

import cloudpickle

from meshrun.runner.arrays.operations.split_array import SplitArray
from meshrun.runner.errors import RunError, describe
from meshrun.runner.run.declare import job
from meshrun.runner.run.main_program.checkpoint import end_checkpoints
from meshrun.runner.run.main_program.program_world import ProgramWorld
from meshrun.runner.world.world import World

MOST_KEPT = 64  # functions that were sent, so that a further call of one finds what it has prepared


@job
def serve_program(world: World, argument: str) -> None:
    """Compute for the program that listens at a port of this host, until it ends.

    argument: the port, and the connection's key.
    """
    port, key = argument.split()
    opened = ProgramWorld(**{one.name: getattr(world, one.name) for one in fields(world) if one.init})
    with Client(("127.0.0.1", int(port)), authkey=bytes.fromhex(key)) as connection:
        connection.send(world.rank)
        rank = ServedRank(opened)
        while True:
            try:
                command = connection.recv_bytes()
            except EOFError:  # the program has closed its world, or ended
                return
            connection.send_bytes(rank.answer(command))


class ServedRank:
    """What a rank keeps for the program: objects by their numbers, and functions by their bytes."""

    def __init__(self, world: ProgramWorld) -> None:
        self.world, self._count = world, 0
        self._objects: dict[int, Any] = {}
        self._passed: dict[int, int] = {}  # numbers of the objects that a command names, by id
        self._functions: dict[bytes, Any] = {}

    def answer(self, command: bytes) -> bytes:
        """Do what a command says. Returns whether it was done, with the result or the error."""
        self._passed = {}
        try:
            folder, dropped, call = pickle.loads(command)
            for number in dropped:
                del self._objects[number]
            os.chdir(folder)
            what, arguments, options = Reader(call, self._object).load()
            result = self._call(what, arguments, options)
            # Rank 0 answers for all; the others number what there is in the result.
            return self._written(True, result)
        except BaseException as failure:
            if not isinstance(failure, Exception):
                raise
            try:
                return self._written(False, failure)
            except (TypeError, ValueError, AttributeError, pickle.PicklingError):
                return self._written(False, RunError(describe(failure)))

    def _call(self, what: Any, arguments: Any, options: Any) -> Any:
        if isinstance(what, bytes):
            if what not in self._functions:
                self._functions[what] = cloudpickle.loads(what)
            function = self._functions[what]
            while len(self._functions) > MOST_KEPT:
                del self._functions[next(iter(self._functions))]
            return function(*arguments, **options)
        if not isinstance(what, str):
            return what(*arguments, **options)
        kind, _, name = what.partition(" ")
        if kind == "resume":
            self.world.checkpoints.resume, self.world.checkpoints.program = arguments
            return None
        if kind == "end":
            end_checkpoints(self.world, failed=False)
            return None
        if kind == "world":
            return getattr(self.world, name)(*arguments, **options)
        if kind == "next":
            return next(*arguments)
        value = getattr(arguments[0], name)
        return value(*arguments[1:], **options) if kind == "method" else value

    def number(self, value: Any) -> int:
        """Return the number of an array or an iterator: that of the command, or a new one."""
        number = self._passed.get(id(value))
        if number is None:
            self._count += 1
            number = self._count
            self._objects[number] = value
            self._passed[id(value)] = number
        return number

    def _object(self, number: Any) -> Any:
        value = self._objects[number]
        self._passed[id(value)] = number
        return value

    def _written(self, done: bool, value: Any) -> bytes:
        if done and self.world.rank:
            # Number the arrays in the result as rank 0 does, which alone sends it.
            _Writer(_Nowhere(), self).dump((done, value))
            value = None
        with io.BytesIO() as file:
            _Writer(file, self).dump((done, value))
            return file.getvalue()


class Reader(pickle.Unpickler):
    """Reads what has numbers in place of arrays. objects: returns what a number stands for."""

    def __init__(self, data: bytes, objects: Callable[[Any], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._objects = objects

    def persistent_load(self, number: Any) -> Any:
        return self._objects(number)


class _Writer(pickle.Pickler):
    def __init__(self, file: Any, rank: ServedRank) -> None:
        super().__init__(file)
        self._rank = rank

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        """Return what stands for an array or an iterator in an answer; None for other values."""
        if isinstance(value, SplitArray):
            described: tuple[Any, ...] = ("array", value.shape, value.dtype.str)
        elif isinstance(value, Iterator):
            described = ("iterator", (), "")
        else:
            return None
        return (*described, self._rank.number(value))


class _Nowhere(io.RawIOBase):
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes
