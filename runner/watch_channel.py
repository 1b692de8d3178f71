"""How the watchdog's threads talk: TCP from every rank to rank 0, in lines of JSON.

Not over MPI, which may be what is stuck. A connection counts once it has shown the run's token, which
the ranks got over MPI; any other is ignored. Rank 0 shows the token too: one of its addresses, a
container bridge's say, may be somebody else's as seen from another host.
"""

from __future__ import annotations

import fcntl
import json
import resource
import selectors
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

CONNECT = 2.0  # seconds for each address of rank 0
SEND = 0.5  # seconds for a message: a peer that reads nothing must not hold up the others
LINE = 1 << 16  # bytes; more without a line's end is no message of ours
CANDIDATES = 8  # addresses tried
SIOCGIFADDR = 0x8915  # Linux's request for an interface's IPv4 address
LOOPBACK = "127.0.0.1"


class Line:
    """One connection: messages in both directions."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = b""
        self._early: list[Message] = []
        connection.settimeout(SEND)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """To a peer that is gone or reads nothing, nothing is sent."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def receive(self, seconds: float = SEND) -> list[Message] | None:
        """Messages that are complete, after waiting up to `seconds` for bytes; None at the connection's end.

        What is no message of ours ends the connection as well.
        """
        if self._early:
            early, self._early = self._early, []
            return early
        self._socket.settimeout(seconds)
        try:
            chunk = self._socket.recv(LINE)
        except TimeoutError:
            return []
        except OSError:
            return None
        finally:
            self._socket.settimeout(SEND)
        *lines, self._received = (self._received + chunk).split(b"\n")
        if not chunk or len(self._received) > LINE:
            return None
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            return None
        return messages if all(isinstance(message, dict) for message in messages) else None

    def put_back(self, messages: list[Message]) -> None:
        """For the next `receive`."""
        self._early = messages

    def close(self) -> None:
        self._socket.close()


@dataclass
class Hub:
    """Rank 0's end of all connections, for one thread.

    lines: of the ranks that have shown the token. gone: why those are no longer there that once were.
    """

    token: str
    lines: dict[int, Line] = field(default_factory=dict)
    gone: dict[int, str] = field(default_factory=dict)
    _strangers: set[Line] = field(default_factory=set)
    _listener: socket.socket | None = None
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def listen(self, peers: int) -> int:
        """Listen on all interfaces, for `peers` ranks that come at once; the port. Raises OSError."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, soft + peers), hard))
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server(("", 0), family=family, backlog=peers, dualstack_ipv6=both)
        self._selector.register(self._listener, selectors.EVENT_READ)
        port: int = self._listener.getsockname()[1]
        return port

    def poll(self, seconds: float) -> Iterator[tuple[int, Message]]:
        """What ranks have said, each with its rank; waits up to `seconds` for the first."""
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._accept()
            else:
                yield from self._hear(*key.data)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            line = Line(self._listener.accept()[0])
        except OSError:  # gone again, or no descriptor left: that rank finds that it cannot connect
            return
        self._strangers.add(line)
        self._selector.register(line, selectors.EVENT_READ, (line, None))

    def _hear(self, line: Line, rank: int | None) -> Iterator[tuple[int, Message]]:
        messages = line.receive()
        if rank is None and messages:
            rank = messages[0].get("rank") if messages[0].get("token") == self.token else None
            messages = messages[1:] if isinstance(rank, int) else None
            if rank is not None and messages is not None:
                self._admit(line, rank)
        if messages is None:
            self._drop(line, rank, "its process ended")
            return
        for message in messages:
            if "bye" in message:
                self._drop(line, rank, "it had nothing more to measure")
            elif rank is not None:
                yield rank, message

    def _admit(self, line: Line, rank: int) -> None:
        self._strangers.discard(line)
        self._selector.modify(line, selectors.EVENT_READ, (line, rank))
        self.lines[rank] = line
        line.send({"token": self.token})

    def _drop(self, line: Line, rank: int | None, reason: str) -> None:
        self._selector.unregister(line)
        self._strangers.discard(line)
        line.close()
        if rank is not None and self.lines.get(rank) is line:
            del self.lines[rank]
            self.gone[rank] = reason

    def say(self, message: Message) -> None:
        """To every connected rank."""
        for line in self.lines.values():
            line.send(message)

    def close(self) -> None:
        self._selector.close()
        for line in (*self.lines.values(), *self._strangers):
            line.close()
        if self._listener is not None:
            self._listener.close()


def connect(candidates: Sequence[str], port: int, token: str, rank: int) -> Line | str:
    """This rank's connection to rank 0, by the first address that works; else why none did."""
    reason = "rank 0's host has no address but the loopback"
    for address in candidates:
        try:
            line = Line(socket.create_connection((address, port), CONNECT))
        except OSError as failure:
            reason = f"{address} port {port}: {failure.strerror or failure}"
            continue
        line.send({"token": token, "rank": rank})
        answer = line.receive(CONNECT)
        if answer and answer[0] == {"token": token}:
            line.put_back(answer[1:])  # what rank 0 had to say at once
            return line
        line.close()
        reason = f"{address} port {port}: what listens there is not rank 0"
    return reason


def addresses() -> list[str]:
    """Addresses by which other hosts may reach this one, the likeliest first; never the loopback."""
    found = [*_of_default_route(), *_of_host_name(), *_of_interfaces()]
    outward = [a for a in found if not a.startswith(("127.", "fe80:")) and a != "::1"]
    return list(dict.fromkeys(outward))[:CANDIDATES]


def _of_default_route() -> Iterator[str]:
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))  # of a datagram socket: picks the route, sends nothing
                yield probe.getsockname()[0]
        except OSError:
            continue


def _of_host_name() -> list[str]:
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)]
    except OSError:
        return []


def _of_interfaces() -> Iterator[str]:
    """Every interface's IPv4 address: of compute nodes, many have no default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)
            except OSError:  # an interface without one
                continue
            yield socket.inet_ntoa(answer[20:24])
