"""How the watchdog's threads talk: TCP from every rank to rank 0, in lines of JSON.

Not MPI, which may be what is stuck. A connection counts once its first line held the run's token, which
the ranks got over MPI; any other is ignored. Rank 0 proves itself by the token too: a private address
of its host, such as a container bridge's, may be somebody else's on another host.
"""

from __future__ import annotations

import json
import selectors
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

CONNECT = 2.0  # seconds for each address of rank 0
SEND = 0.5  # seconds for a line: a peer that reads nothing must not hold up the others
LINE = 1 << 16  # bytes; more without a line's end is no message of ours
CANDIDATES = 8  # addresses tried
SIOCGIFADDR = 0x8915  # Linux: an interface's IPv4 address


class Line:
    """One connection: lines of JSON in both directions."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._received = b""
        connection.settimeout(SEND)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Message) -> bool:
        """False when the peer is gone or does not read."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> list[Message] | None:
        """Complete messages that have arrived, waiting for bytes at most SEND; None at the connection's end.

        Something that is no message of ours ends the connection as well.
        """
        try:
            chunk = self.socket.recv(LINE)
        except TimeoutError:
            return []
        except OSError:
            return None
        *lines, self._received = (self._received + chunk).split(b"\n")
        if not chunk or len(self._received) > LINE:
            return None
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            return None
        return messages if all(isinstance(message, dict) for message in messages) else None

    def close(self) -> None:
        self.socket.close()


@dataclass
class Hub:
    """Rank 0's end of all connections. Only the thread that polls uses it, once the ranks have connected.

    lines: of the ranks that have shown the token. gone: ranks whose connection has ended
    without a farewell.
    """

    token: str
    listener: socket.socket
    lines: dict[int, Line] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    @classmethod
    def open(cls, token: str, backlog: int) -> Hub:
        """Listen on a free port of all interfaces; raises OSError."""
        hub = cls(token, _listen(backlog))
        hub._selector.register(hub.listener, selectors.EVENT_READ)
        return hub

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    def poll(self, seconds: float) -> Iterator[tuple[int, Message]]:
        """What ranks have said within `seconds`, with the rank; returns after the first arrivals."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self.listener:
                self._accept()
                continue
            line, rank = key.data
            messages = line.receive()
            if messages is None:
                self._drop(line, rank)
                continue
            if rank is None and messages:
                rank = self._admit(line, messages.pop(0))
            if rank is not None:
                yield from ((rank, message) for message in messages)

    def _accept(self) -> None:
        try:
            line = Line(self.listener.accept()[0])
        except OSError:  # gone again, or no file descriptor left: its rank reports that it cannot connect
            return
        self._selector.register(line, selectors.EVENT_READ, (line, None))

    def _admit(self, line: Line, greeting: Message) -> int | None:
        rank = greeting.get("rank")
        if greeting.get("token") != self.token or not isinstance(rank, int):
            self._drop(line, None)
            return None
        self._selector.modify(line, selectors.EVENT_READ, (line, rank))
        self.lines[rank] = line
        line.send({"token": self.token})
        return rank

    def _drop(self, line: Line, rank: int | None) -> None:
        self._selector.unregister(line)
        line.close()
        if rank is not None and self.lines.pop(rank, None) is not None:
            self.gone.add(rank)

    def say(self, message: Message) -> None:
        """Send to every connected rank."""
        for line in self.lines.values():
            line.send(message)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()


def addresses() -> list[str]:
    """Addresses under which other hosts may reach this one, the likeliest first."""
    found: list[str] = []
    for family, documentation in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((documentation, 9))  # sends nothing: asks which address the default route has
                found.append(probe.getsockname()[0])
        except OSError:
            continue
    try:
        found += [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)]
    except OSError:
        pass
    found += [address for _, name in socket.if_nameindex() if (address := _interface_address(name))]
    outward = [address for address in found if not address.startswith("127.") and address != "::1"]
    return list(dict.fromkeys(outward))[:CANDIDATES]
