"""Copy requests as JSON lines."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable
from typing import Any

from ...backends.checksums import from_text
from ...backends.errors import UsageError
from ...backends.request import CopyRequest

_FIELDS: dict[str, tuple[type, ...]] = {
    "source": (str,),
    "destination": (str,),
    "size": (int,),
    "offset": (int,),
    "length": (int,),
    "crc64nvme": (int, str),
    "crc32c": (int, str),
    "etag": (str,),
}
_WIDTHS = {"crc64nvme": 8, "crc32c": 4}


def read_requests(path: str) -> list[CopyRequest]:
    """The requests of a file, ``-`` for stdin.

    Raises:
        UsageError: the file cannot be read, or a line is no request; the line is named by its number.
    """
    if path == "-":
        return _parse(sys.stdin.buffer, "stdin")
    try:
        with open(path, "rb") as lines:
            return _parse(lines, path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _parse(lines: Iterable[bytes], name: str) -> list[CopyRequest]:
    requests: list[CopyRequest] = []
    taken: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        request = _request(line, f"{name} line {number}")
        first = taken.setdefault(request.destination, number)
        if first != number:
            raise UsageError(f"{name} line {number}: {request.destination} is the destination of line {first} too")
        requests.append(request)
    return requests


def _request(line: bytes, where: str) -> CopyRequest:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise UsageError(f"{where}: not a JSON object")
    values = {key: _value(key, value, where) for key, value in record.items() if value is not None}
    missing = [key for key in ("source", "destination") if key not in values]
    if missing:
        raise UsageError(f"{where}: {' and '.join(missing)} missing")
    try:
        return CopyRequest(**values)
    except UsageError as error:
        raise UsageError(f"{where}: {error.args[0]}") from error


def _value(key: str, value: object, where: str) -> Any:
    kinds = _FIELDS.get(key)
    if kinds is None:
        nearest = difflib.get_close_matches(key, _FIELDS, n=1, cutoff=0.0)[0]
        raise UsageError(f"{where}: unknown field {key!r}", remedy=f"did you mean {nearest}?")
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise UsageError(f"{where}: {key} must be {' or '.join(_NAMES[kind] for kind in kinds)}")
    width = _WIDTHS.get(key)
    if width is None:
        return value
    try:
        number = from_text(value, width) if isinstance(value, str) else int(str(value))
    except UsageError as error:
        raise UsageError(f"{where}: {key} is {error.args[0]}") from error
    if not 0 <= number < 1 << 8 * width:
        raise UsageError(f"{where}: {key} is not a checksum of {width} bytes")
    return number


_NAMES = {str: "a text", int: "a whole number"}
