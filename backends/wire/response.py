"""Reading HTTP/1.1 responses (RFC 9112) without input or output of its own.

`ResponseReader.feed` takes bytes in any pieces and gives back the body as views of the same
memory: for a body with a length that is one comparison and one slice per chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

HEAD_LIMIT = 64 << 10
_LINE_LIMIT = 4 << 10
_USUAL_HEAD = 2 << 10


class BadResponse(Exception):
    """The bytes are not a response, or break a limit."""


@dataclass(slots=True)
class Head:
    """Status and headers; names in lower case, repeated ones joined by a comma."""

    status: int
    reason: str
    headers: dict[str, str]
    keep_alive: bool

    def number(self, name: str) -> int | None:
        """A header of decimal digits.

        Raises:
            BadResponse: it is something else.
        """
        text = self.headers.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise BadResponse(f"{name}: {text[:40]!r} is not a number")
        return int(text)


def parse_head(raw: bytes) -> Head:
    """Parse a status line and headers, without the empty line that ends them.

    Raises:
        BadResponse: they are malformed.
    """
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code, _, reason = rest.partition(" ")
    if version not in {"HTTP/1.1", "HTTP/1.0"} or not (len(code) == 3 and code.isascii() and code.isdigit()):
        raise BadResponse(f"not an HTTP/1.1 response: {first[:60]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadResponse(f"malformed header line {line[:60]!r}")
        name, value = name.lower(), value.strip(" \t")
        if name in headers:
            value = _joined(name, headers[name], value)
        headers[name] = value
    connection = headers.get("connection", "").lower()
    keep = "close" not in connection if version == "HTTP/1.1" else "keep-alive" in connection
    return Head(int(code), reason, headers, keep)


def _joined(name: str, before: str, value: str) -> str:
    # Two different lengths are the classic way to smuggle one response into another (RFC 9112, 6.3).
    if name == "content-length":
        if before != value:
            raise BadResponse("two different content-lengths")
        return value
    return f"{before}, {value}"


class _State(Enum):
    HEAD = auto()
    LENGTH = auto()
    TO_END = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILERS = auto()
    DONE = auto()


class ResponseReader:
    """One response, after any number of interim ones (1xx), which are skipped.

    Attributes:
        head: of the final response, once it is complete.
        done: the body has ended.
        excess: bytes came after the end: the connection cannot be used again.
        received: a first byte has come.
    """

    __slots__ = ("_line", "_method", "_state", "done", "excess", "head", "left", "received")

    def __init__(self, method: str = "GET") -> None:
        self._method = method
        self._state = _State.HEAD
        self._line = b""
        self.left = 0
        self.head: Head | None = None
        self.done = False
        self.excess = False
        self.received = False

    @property
    def reusable(self) -> bool:
        """Whether another request may follow on this connection."""
        return self.done and not self.excess and self.head is not None and self.head.keep_alive and self.left == 0

    def feed(self, data: memoryview) -> list[memoryview]:
        """The pieces of the body in ``data``, as views of it.

        Raises:
            BadResponse: this is no response within the limits.
        """
        if self._state is _State.LENGTH and len(data) < self.left:
            self.left -= len(data)
            return [data]
        self.received = self.received or len(data) > 0
        pieces: list[memoryview] = []
        while len(data):
            if self._state is _State.DONE:
                self.excess = True
                break
            data = self._consume(data, pieces)
        return pieces

    @property
    def is_plain(self) -> bool:
        """Whether what comes next is nothing but ``left`` bytes of the body."""
        return self._state is _State.LENGTH

    def passed(self, count: int) -> None:
        """Bytes of a plain body went another way than through `feed`."""
        self.left -= count
        if self.left == 0:
            self._finish()

    def end(self) -> None:
        """The peer closed.

        Raises:
            BadResponse: in the middle of the response.
        """
        if self._state is _State.TO_END:
            self._finish()
        elif not self.done:
            raise BadResponse("the connection was closed before the response ended")

    def _consume(self, data: memoryview, pieces: list[memoryview]) -> memoryview:
        if self._state is _State.LENGTH or self._state is _State.CHUNK:
            return self._take(data, pieces)
        if self._state is _State.TO_END:
            pieces.append(data)
            return data[len(data) :]
        if self._state is _State.HEAD:
            return self._read_head(data)
        return self._read_line(data)

    def _take(self, data: memoryview, pieces: list[memoryview]) -> memoryview:
        count = min(self.left, len(data))
        pieces.append(data[:count])
        self.left -= count
        if self.left == 0:
            if self._state is _State.CHUNK:
                self._state = _State.CHUNK_END
            else:
                self._finish()
        return data[count:]

    def _read_head(self, data: memoryview) -> memoryview:
        # Only what may still belong to the head is copied; the body stays where it is.
        text = self._line + bytes(data[:_USUAL_HEAD])
        end = text.find(b"\r\n\r\n")
        if end < 0 and len(data) > _USUAL_HEAD:
            text = self._line + bytes(data[: HEAD_LIMIT + 4])
            end = text.find(b"\r\n\r\n")
        if end < 0:
            if len(text) > HEAD_LIMIT:
                raise BadResponse(f"headers of more than {HEAD_LIMIT} bytes")
            self._line = text
            return data[len(data) :]
        rest = data[end + 4 - len(self._line) :]
        self._line = b""
        self._begin(parse_head(text[:end]))
        return rest

    def _begin(self, head: Head) -> None:
        if 100 <= head.status < 200:
            return
        self.head = head
        length = head.number("content-length")
        encoding = head.headers.get("transfer-encoding")
        if self._method == "HEAD" or head.status in {204, 304}:
            self._finish()
        elif encoding is not None:
            if encoding.lower() != "chunked":
                raise BadResponse(f"unknown transfer-encoding {encoding[:40]!r}")
            if length is not None:
                head.keep_alive = False
            self._state = _State.CHUNK_SIZE
        elif length is None:
            head.keep_alive = False
            self._state = _State.TO_END
        elif length:
            self.left, self._state = length, _State.LENGTH
        else:
            self._finish()

    def _read_line(self, data: memoryview) -> memoryview:
        window = bytes(data[:_LINE_LIMIT])
        end = window.find(b"\n")
        self._line += window if end < 0 else window[: end + 1]
        if len(self._line) > _LINE_LIMIT:
            raise BadResponse("a chunk's line is too long")
        if end < 0:
            return data[len(window) :]
        line, self._line = self._line, b""
        if not line.endswith(b"\r\n"):
            raise BadResponse("a chunk's line ends without CR LF")
        self._got_line(line[:-2])
        return data[end + 1 :]

    def _got_line(self, line: bytes) -> None:
        if self._state is _State.CHUNK_SIZE:
            self.left = _chunk_size(line)
            self._state = _State.CHUNK if self.left else _State.TRAILERS
        elif self._state is _State.CHUNK_END:
            if line:
                raise BadResponse("a chunk is longer than it said")
            self._state = _State.CHUNK_SIZE
        else:
            self._got_trailer(line)

    def _got_trailer(self, line: bytes) -> None:
        if not line:
            self._finish()
            return
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise BadResponse(f"malformed trailer {name[:60]!r}")
        if self.head is not None and len(self.head.headers) < 200:
            self.head.headers.setdefault(name.strip().lower(), value.strip())

    def _finish(self) -> None:
        self._state = _State.DONE
        self.done = True


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > 15 or digits.strip(b"0123456789abcdefABCDEF"):
        raise BadResponse(f"{line[:40]!r} is not a chunk's size")
    return int(digits, 16)
