"""How RocksDB codes numbers and bytes (``util/coding.h``) and frames records in a log (``db/log_format.h``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...backends.checksums import crc32c

_BLOCK = 32768
_HEADER = 7  # checksum (4), length (2), type (1)
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MASK_DELTA = 0xA282EAD8


class MalformedRecord(ValueError):
    """Bytes that are cut off, damaged, or of an unknown kind."""


class Reader:
    """Varints and length-prefixed bytes (RocksDB's ``util/coding.h``) in one record."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> bool:
        return self._position < len(self._data)

    def varint(self) -> int:
        value = shift = 0
        while True:
            if not self.left or shift > 63:
                raise MalformedRecord("a number is cut off")
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def bytes(self) -> bytes:
        end = self.varint() + self._position
        if end > len(self._data):
            raise MalformedRecord("a field is cut off")
        found = self._data[self._position : end]
        self._position = end
        return found


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def prefixed(data: bytes) -> bytes:
    return varint(len(data)) + data


def _masked(kind: int, payload: bytes) -> int:
    value = crc32c(payload, crc32c(bytes([kind])))
    return ((value >> 15 | value << 17) + _MASK_DELTA) & 0xFFFFFFFF


def records(data: bytes) -> Iterator[bytes]:
    """Whole records of a log; a torn one is an error, since a checkpoint's MANIFEST has none."""
    parts: list[bytes] = []
    for kind, payload in _fragments(data):
        if (kind in {_FULL, _FIRST}) == bool(parts):
            raise MalformedRecord("records are out of order")
        parts.append(payload)
        if kind in {_FULL, _LAST}:
            yield b"".join(parts)
            parts = []
    if parts:
        raise MalformedRecord("the last record is cut off")


def _fragments(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        room = _BLOCK - position % _BLOCK
        if room < _HEADER:
            position += room
            continue
        header = data[position : position + _HEADER]
        length = int.from_bytes(header[4:6], "little")
        payload = data[position + _HEADER : position + _HEADER + length]
        if len(header) < _HEADER or len(payload) < length or _HEADER + length > room:
            raise MalformedRecord("a record is cut off")
        kind = header[6]
        if kind not in {_FULL, _FIRST, _MIDDLE, _LAST}:
            raise MalformedRecord(f"record type {kind}")
        if _masked(kind, payload) != int.from_bytes(header[:4], "little"):
            raise MalformedRecord("a record's checksum differs")
        yield kind, payload
        position += _HEADER + length


def log(records: Iterable[bytes]) -> bytes:
    out = bytearray()
    for record in records:
        rest, first = record, True
        while first or rest:
            room = _BLOCK - len(out) % _BLOCK
            if room < _HEADER:
                out += bytes(room)
                continue
            payload, rest = rest[: room - _HEADER], rest[room - _HEADER :]
            kind = (_LAST if not first else _FULL) if not rest else (_FIRST if first else _MIDDLE)
            out += _masked(kind, payload).to_bytes(4, "little") + len(payload).to_bytes(2, "little")
            out += bytes([kind]) + payload
            first = False
    return bytes(out)
