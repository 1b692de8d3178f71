"""The channel of watchdog and heartbeat: TCP connections from other processes to rank 0, with lines of JSON.

It does not use MPI, which may itself be stuck. A connection is accepted once it has presented the run's
token, which the ranks received over MPI; others are ignored. Rank 0 presents the token too, because one of
its addresses, such as a container bridge's, may belong to a different machine as seen from another host.
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

CONNECT_TIMEOUT = 2.0  # seconds to connect, for each address of rank 0
SEND_TIMEOUT = 0.5  # seconds to send a message: a peer that reads nothing must not delay the others
MAX_MESSAGE = 1 << 16  # bytes; a longer line is not a message of this protocol
MAX_CANDIDATES = 8  # host_addresses tried
SIOCGIFADDR = 0x8915  # Linux's request for an interface's IPv4 address
LOOPBACK = "127.0.0.1"


class Connection:
    """One TCP connection, with messages in both directions."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = b""
        self._pushed_back: list[Message] = []
        connection.settimeout(SEND_TIMEOUT)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send a message; does nothing if the peer is gone or reads nothing."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def receive(self, seconds: float = SEND_TIMEOUT) -> list[Message] | None:
        """Complete messages, after waiting up to `seconds` for data; None if the connection has ended.

        Data that is not a valid message ends the connection too.
        """
        if self._pushed_back:
            pushed_back, self._pushed_back = self._pushed_back, []
            return pushed_back
        self._socket.settimeout(seconds)
        try:
            chunk = self._socket.recv(MAX_MESSAGE)
        except TimeoutError:
            return []
        except OSError:
            return None
        finally:
            self._socket.settimeout(SEND_TIMEOUT)
        *lines, self._received = (self._received + chunk).split(b"\n")
        if not chunk or len(self._received) > MAX_MESSAGE:
            return None
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            return None
        return messages if all(isinstance(message, dict) for message in messages) else None

    def push_back(self, messages: list[Message]) -> None:
        """Have the next `receive` return `messages`."""
        self._pushed_back = messages

    def close(self) -> None:
        self._socket.close()


@dataclass
class Hub:
    """Rank 0's end of all connections; for a single thread.

    connections: by rank, of those that have presented the token. disconnected: by rank, why one has ended.
    """

    token: str
    connections: dict[int, Connection] = field(default_factory=dict)
    disconnected: dict[int, str] = field(default_factory=dict)
    _unverified: set[Connection] = field(default_factory=set)
    _listener: socket.socket | None = None
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def listen(self, peers: int) -> int:
        """Listen on all interfaces, for `peers` ranks that connect at once; returns the port. Raises
        OSError."""
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
        """Messages that have arrived, each with its rank; waits up to `seconds` for the first."""
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._accept()
            else:
                yield from self._hear(*key.data)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection = Connection(self._listener.accept()[0])
        except OSError:  # closed already, or no descriptor left: that rank notices that it cannot connect
            return
        self._unverified.add(connection)
        self._selector.register(connection, selectors.EVENT_READ, (connection, None))

    def _hear(self, connection: Connection, rank: int | None) -> Iterator[tuple[int, Message]]:
        messages = connection.receive()
        if rank is None and messages:
            rank = messages[0].get("rank") if messages[0].get("token") == self.token else None
            messages = messages[1:] if isinstance(rank, int) else None
            if rank is not None and messages is not None:
                self._admit(connection, rank)
        if messages is None:
            self._drop(connection, rank, "its process ended")
            return
        for message in messages:
            if "bye" in message:
                self._drop(connection, rank, "it had no measurements left")
            elif rank is not None:
                yield rank, message

    def _admit(self, connection: Connection, rank: int) -> None:
        self._unverified.discard(connection)
        self._selector.modify(connection, selectors.EVENT_READ, (connection, rank))
        self.connections[rank] = connection
        connection.send({"token": self.token})

    def _drop(self, connection: Connection, rank: int | None, reason: str) -> None:
        self._selector.unregister(connection)
        self._unverified.discard(connection)
        connection.close()
        if rank is not None and self.connections.get(rank) is connection:
            del self.connections[rank]
            self.disconnected[rank] = reason

    def broadcast(self, message: Message) -> None:
        """Send `message` to every connected rank."""
        for connection in self.connections.values():
            connection.send(message)

    def close(self) -> None:
        self._selector.close()
        for connection in (*self.connections.values(), *self._unverified):
            connection.close()
        if self._listener is not None:
            self._listener.close()


def connect(candidates: Sequence[str], port: int, token: str, rank: int) -> Connection | str:
    """Connect to rank 0 at the first of its addresses that works; returns the reason if none does."""
    reason = "rank 0's host has no address but the loopback"
    for address in candidates:
        try:
            connection = Connection(socket.create_connection((address, port), CONNECT_TIMEOUT))
        except OSError as failure:
            reason = f"{address} port {port}: {failure.strerror or failure}"
            continue
        connection.send({"token": token, "rank": rank})
        answer = connection.receive(CONNECT_TIMEOUT)
        if answer and answer[0] == {"token": token}:
            connection.push_back(answer[1:])  # messages that rank 0 sent immediately after
            return connection
        connection.close()
        reason = f"{address} port {port}: another program listens there, not rank 0"
    return reason


def host_addresses() -> list[str]:
    """Addresses at which other hosts may reach this one, the most likely first; never the loopback."""
    found = [*_of_default_route(), *_of_host_name(), *_of_interfaces()]
    outward = [a for a in found if not a.startswith(("127.", "fe80:")) and a != "::1"]
    return list(dict.fromkeys(outward))[:MAX_CANDIDATES]


def _of_default_route() -> Iterator[str]:
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))  # on a datagram socket: selects the route, sends nothing
                yield probe.getsockname()[0]
        except OSError:
            continue


def _of_host_name() -> list[str]:
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)]
    except OSError:
        return []


def _of_interfaces() -> Iterator[str]:
    """Every interface's IPv4 address, because many compute nodes have no default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)
            except OSError:  # an interface without an IPv4 address
                continue
            yield socket.inet_ntoa(answer[20:24])
