"""A request before it is signed, an answer whose body is still to be read, and what the network raises between."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import BackendError, ConnectionFailed, StalledTransfer, TransferError
from .answers import BODY_LIMIT
from .connection import Connection
from .response import BadResponse, Head, ResponseReader

if TYPE_CHECKING:
    from .client import Client

#: How often a transfer looks at the clock while nothing happens.
SLICE = 0.25


@dataclass(slots=True)
class FileBody:
    """A range of an open file as the body of a request.

    Args:
        sent: called with the bytes that left.
        pace: seconds to wait after so many bytes.
    """

    fd: int
    offset: int
    length: int
    sent: Callable[[int], None]
    pace: Callable[[int], float] | None = None


@dataclass(slots=True)
class Order:
    """A request before it is addressed and signed.

    Args:
        headers: ``x-amz-*`` only; they are signed.
        unsigned: further headers.
        patience: seconds to wait for the answer's head; None: the stall timeout.
        waited: seconds from the end of the request to the answer's head, once it has come.
    """

    method: str
    bucket: str
    key: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    unsigned: dict[str, str] = field(default_factory=dict)
    body: bytes | FileBody | None = None
    patience: float | None = None
    waited: float = 0.0

    @property
    def subject(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


class Exchange:
    """An answer whose head has come. Its body's pieces are views of the client's one buffer: use
    them before the next ``await``. End it by `finish` or `abort`."""

    __slots__ = ("_client", "_first", "connection", "head", "reader")

    def __init__(
        self, client: Client, connection: Connection, reader: ResponseReader, head: Head, first: list[memoryview]
    ) -> None:
        self._client = client
        self.connection = connection
        self.reader = reader
        self.head = head
        self._first = first

    @property
    def ended(self) -> bool:
        return self.reader.done and not self._first

    async def more(self) -> list[memoryview]:
        """Pieces of the body; an empty list where none came within a slice of time, or at the end."""
        if self._first:
            first, self._first = self._first, []
            return first
        if self.reader.done:
            return []
        await self.ready()
        connection = self.connection
        try:
            count = connection.receive(self._client.buffer, self._client.scratch)
        except BlockingIOError:
            connection.drained = True
            return []
        if count == 0:
            self.reader.end()
            return []
        return self.reader.feed(self._client.buffer[:count])

    async def ready(self) -> None:
        """Wait a slice of time for something to come, with no piece outstanding."""
        if self.connection.drained:
            await self.connection.readable(time.monotonic() + SLICE)
        else:
            await self._client.loop.turn()

    @property
    def is_plain(self) -> bool:
        """Whether the rest of the body lies in the socket as it is."""
        return not self._first and self.reader.is_plain and self.connection.tls is None

    async def read(self, limit: int = BODY_LIMIT) -> bytes:
        """The whole body, of which no more than ``limit`` bytes are kept."""
        body = bytearray()
        patience = self._client.access.transfer.stall_timeout
        last = time.monotonic()
        while not self.ended:
            pieces = await self.more()
            for piece in pieces:
                body += piece[: max(0, limit - len(body))]
            if pieces:
                last = time.monotonic()
            elif time.monotonic() - last > patience:
                raise TimeoutError("timed out")
        return bytes(body)

    def finish(self) -> None:
        """Give the connection back where the answer left it in order."""
        if self.reader.reusable and self.connection.is_open:
            self._client.pool.release(self.connection)
        else:
            self._client.pool.discard(self.connection)

    def abort(self) -> None:
        self._client.pool.discard(self.connection)


class network:  # noqa: N801  read as a verb: with network(subject)
    """Turns what the network raises in a block into errors of the tree. A class: half the cost of a generator."""

    __slots__ = ("_subject",)

    def __init__(self, subject: str) -> None:
        self._subject = subject

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (OSError, BadResponse)) and not isinstance(error, TransferError):
            raise _translated(error, self._subject) from error


def _translated(error: OSError | BadResponse, subject: str) -> TransferError:
    if isinstance(error, BadResponse):
        if "closed" in str(error):
            return ConnectionFailed(f"{subject}: {error}")
        return BackendError(f"{subject}: bad answer: {error}", transient=True)
    if isinstance(error, TimeoutError):
        return StalledTransfer(f"{subject}: {error.args[0] if error.args else 'timed out'}")
    if isinstance(error, ssl.SSLError):
        return ConnectionFailed(f"{subject}: TLS: {error.reason or error}")
    return ConnectionFailed(f"{subject}: {os.strerror(error.errno) if error.errno else error}")
