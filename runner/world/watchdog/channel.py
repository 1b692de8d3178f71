"""The channel of watchdog and heartbeat: TCP connections from other processes to rank 0, with lines of JSON.

It does not use MPI, which may itself be stuck. Both ends prove that they know the run's token, which the
ranks received over MPI and which is never sent here: rank 0 sends a challenge, the other end answers with a
challenge of its own and the HMAC of both, and rank 0 with another HMAC of both. Rank 0 proves itself too,
because one of its addresses, such as a container bridge's, may belong to a different machine as seen from
another host. From then on every message is numbered and carries an HMAC, under a key of this connection and
direction, so that nothing can be changed, repeated or inserted. Messages are not secret.

Whoever does not prove itself within `HANDSHAKE_TIMEOUT` is disconnected, and so is the oldest stranger where
there are too many. Rank 0 listens on the loopback if all ranks are on one host, else on the run's network
interface if one was chosen.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import os
import resource
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshrun.runner.processes import boot_id

Message = dict[str, Any]

CONNECT_TIMEOUT = 2.0  # seconds to connect, for each address of rank 0
SEND_TIMEOUT = 0.5  # seconds to send a message: a peer that reads nothing must not delay the others
HANDSHAKE_TIMEOUT = 5.0  # seconds for a connection to prove that it is of this run
MAX_MESSAGE = 1 << 16  # bytes; a longer line is not a message of this protocol
MAX_HANDSHAKE = 1 << 10  # bytes of a stranger's line
MIN_STRANGERS = 64  # connections that have not proven themselves; more where more ranks connect at once
MAX_CANDIDATES = 8  # host_addresses tried
SIOCGIFADDR = 0x8915  # Linux's request for an interface's IPv4 address
LOOPBACK = "127.0.0.1"


def _hmac(key: bytes, *parts: object) -> str:
    return hmac.digest(key, json.dumps([str(part) for part in parts]).encode(), "sha256").hex()


@dataclass(frozen=True)
class Handshake:
    """What both ends know once both challenges are there. token: the shared secret."""

    token: str
    roots: str
    peers: str
    rank: int

    def proof(self, of: str) -> str:
        """The proof of one end, "root" or "peer"."""
        return _hmac(self.token.encode(), "proof", of, self.roots, self.peers, self.rank)

    def key(self, of: str) -> bytes:
        """The key of all that one end sends."""
        return bytes.fromhex(_hmac(self.token.encode(), "key", of, self.roots, self.peers, self.rank))


class Connection:
    """One TCP connection, with messages in both directions."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = b""
        self._lines: list[bytes] = []
        self._keys: tuple[bytes, bytes] | None = None  # of what is sent and of what is received
        self._sent = self._heard = 0
        self.begun = time.monotonic()
        self.challenge = secrets.token_hex(16)
        connection.settimeout(SEND_TIMEOUT)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send a message; does nothing if the peer is gone or reads nothing."""
        line = json.dumps(message)
        if self._keys is not None:
            line = f"{_hmac(self._keys[0], self._sent, line)} {line}"
            self._sent += 1
        with contextlib.suppress(OSError):
            self._socket.sendall(line.encode() + b"\n")

    def receive(self, seconds: float = SEND_TIMEOUT) -> list[Message] | None:
        """Complete messages, after waiting up to `seconds` for data; None if the connection has ended.

        Data that is not the next valid message ends the connection too.
        """
        if not self._lines and not self._read(seconds):
            return None
        lines, self._lines = self._lines, []
        messages = [self._decode(line) for line in lines]
        return None if None in messages else [message for message in messages if message is not None]

    def secure(self, handshake: Handshake, own: str, other: str) -> None:
        """Number and authenticate every message from now on."""
        self._keys = handshake.key(own), handshake.key(other)

    def first(self, seconds: float) -> Message | None:
        """The next message of a handshake, within `seconds`; None if there is none."""
        until = time.monotonic() + seconds
        while not self._lines:
            left = until - time.monotonic()
            if left <= 0 or not self._read(left, MAX_HANDSHAKE):
                return None
        return self._decode(self._lines.pop(0))

    def take(self) -> Message | bool | None:
        """A stranger's first message; None if it is invalid, True while it is incomplete."""
        if not self._lines and not self._read(0, MAX_HANDSHAKE):
            return None
        return self._decode(self._lines.pop(0)) if self._lines else True

    @property
    def has_more(self) -> bool:
        """Whether messages have been received and not been returned."""
        return bool(self._lines)

    def _read(self, seconds: float, longest: int = MAX_MESSAGE) -> bool:
        """Read what is there; False if the connection has ended."""
        self._socket.settimeout(max(seconds, 1e-3))
        try:
            chunk = self._socket.recv(MAX_MESSAGE)
        except TimeoutError:
            return True
        except OSError:
            return False
        finally:
            self._socket.settimeout(SEND_TIMEOUT)
        *lines, self._received = (self._received + chunk).split(b"\n")
        self._lines += lines
        return bool(chunk) and len(self._received) <= longest

    def _decode(self, line: bytes) -> Message | None:
        try:
            text = line.decode()
            if self._keys is not None:
                proof, _, text = text.partition(" ")
                if not hmac.compare_digest(proof.encode(), _hmac(self._keys[1], self._heard, text).encode()):
                    return None
                self._heard += 1
            message = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        self._socket.close()


@dataclass
class Hub:
    """Rank 0's end of all connections; for a single thread.

    connections: by rank, of those that have proven themselves. disconnected: by rank, why one has ended.
    """

    token: str
    connections: dict[int, Connection] = field(default_factory=dict)
    disconnected: dict[int, str] = field(default_factory=dict)
    _strangers: dict[Connection, None] = field(default_factory=dict)  # the oldest first
    _most_strangers: int = MIN_STRANGERS
    _listener: socket.socket | None = None
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def listen(self, peers: int, address: str = "") -> int:
        """Listen on `address`, or on all interfaces, for `peers` ranks at once; returns the port. Raises
        OSError."""
        self._most_strangers = max(MIN_STRANGERS, 2 * peers)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY:
            wanted = soft + peers + self._most_strangers
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, wanted), hard))
        both = socket.has_dualstack_ipv6() and not address
        family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
        self._listener = socket.create_server(
            (address, 0), family=family, backlog=max(peers, MIN_STRANGERS), dualstack_ipv6=both
        )
        self._selector.register(self._listener, selectors.EVENT_READ)
        port: int = self._listener.getsockname()[1]
        return port

    def poll(self, seconds: float) -> Iterator[tuple[int, Message]]:
        """Messages that have arrived, each with its rank; waits up to `seconds` for the first."""
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._accept()
            elif (rank := key.data[1]) is not None:
                yield from self._hear(key.data[0], rank)
            elif key.data[0] in self._strangers:  # not dropped for a newer one meanwhile
                yield from self._meet(key.data[0])
        late = time.monotonic() - HANDSHAKE_TIMEOUT
        for stranger in [each for each in self._strangers if each.begun < late]:
            self._drop(stranger)

    def _accept(self) -> None:
        assert self._listener is not None
        if len(self._strangers) >= self._most_strangers:
            self._drop(next(iter(self._strangers)))
        try:
            connection = Connection(self._listener.accept()[0])
        except OSError:  # closed already, or no descriptor left: that rank notices that it cannot connect
            if self._strangers:
                self._drop(next(iter(self._strangers)))
            return
        self._strangers[connection] = None
        self._selector.register(connection, selectors.EVENT_READ, (connection, None))
        connection.send({"challenge": connection.challenge})

    def _meet(self, connection: Connection) -> Iterator[tuple[int, Message]]:
        """Admit a stranger that proves to be of this run; drop one that does not."""
        answer = connection.take()
        if answer is True:
            return
        rank = answer.get("rank") if isinstance(answer, dict) else None
        if not isinstance(answer, dict) or type(rank) is not int:
            self._drop(connection)
            return
        handshake = Handshake(self.token, connection.challenge, str(answer.get("challenge")), rank)
        if not hmac.compare_digest(str(answer.get("proof")).encode(), handshake.proof("peer").encode()):
            self._drop(connection)
            return
        del self._strangers[connection]
        self._selector.modify(connection, selectors.EVENT_READ, (connection, rank))
        self.connections[rank] = connection
        connection.send({"proof": handshake.proof("root")})
        connection.secure(handshake, "root", "peer")
        if connection.has_more:
            yield from self._hear(connection, rank)

    def _hear(self, connection: Connection, rank: int) -> Iterator[tuple[int, Message]]:
        messages = connection.receive()
        if messages is None:
            self._drop(connection, rank, "its process ended")
            return
        for message in messages:
            if "bye" in message:
                self._drop(connection, rank, "it had no measurements left")
            else:
                yield rank, message

    def _drop(self, connection: Connection, rank: int | None = None, reason: str = "") -> None:
        self._selector.unregister(connection)
        self._strangers.pop(connection, None)
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
        for connection in (*self.connections.values(), *self._strangers):
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
        if _greet(connection, token, rank):
            return connection
        connection.close()
        reason = f"{address} port {port}: another program listens there, not rank 0"
    return reason


def _greet(connection: Connection, token: str, rank: int) -> bool:
    """Prove to rank 0 that this is `rank`, and have it prove that it is rank 0."""
    challenge = connection.first(CONNECT_TIMEOUT)
    if challenge is None:
        return False
    handshake = Handshake(token, str(challenge.get("challenge")), connection.challenge, rank)
    connection.send({"rank": rank, "challenge": connection.challenge, "proof": handshake.proof("peer")})
    answer = connection.first(CONNECT_TIMEOUT)
    if answer is None:
        return False
    if not hmac.compare_digest(str(answer.get("proof")).encode(), handshake.proof("root").encode()):
        return False
    connection.secure(handshake, "peer", "root")
    return True


def network_stack() -> str:
    """Names what one loopback interface serves: this host, or this container on it."""
    parts = [os.uname().nodename, *filter(None, [boot_id()])]
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/net").stat().st_ino))
    return "/".join(parts)


def interface_address(name: str | None) -> str:
    """The IPv4 address of a network interface; "" without one."""
    return next((address for each, address in _interfaces() if each == name), "")


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


def _of_interfaces() -> list[str]:
    """Every interface's IPv4 address, because many compute nodes have no default route."""
    return [address for _, address in _interfaces()]


def _interfaces() -> Iterator[tuple[str, str]]:
    """Name and IPv4 address of every interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)
            except OSError:  # an interface without an IPv4 address
                continue
            yield name, socket.inet_ntoa(answer[20:24])
