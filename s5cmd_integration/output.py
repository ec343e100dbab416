"""What s5cmd prints with ``--json``: one line per result, in the order of completion.

Observed with s5cmd 2.3.0. Success, on standard output (``size`` is missing where it is 0)::

    {"operation":"cp","success":true,"source":"s3://b/k","destination":"/d/k","object":{"type":"file","size":5}}

Failure, on standard error. The command is printed without quotes, and with or without its flags::

    {"operation":"cp","command":"cp s3://b/k /d/k","error":"NoSuchKey:  status code: 404, request id: ..."}

Anything else is noise: statistics (whose ``success`` is a number), help texts, panics.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Success:
    """A file that s5cmd says it has copied. ``size`` is unknown for a copy within the store."""

    source: str
    destination: str
    size: int | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A command that failed, as s5cmd prints it, and why."""

    command: str
    error: str


@dataclass(frozen=True, slots=True)
class Noise:
    """A line that tells nothing of a file."""

    text: str


Line: TypeAlias = Success | Failure | Noise


def parse_line(line: bytes) -> Line:
    """One line of output, without its end."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    parsed = _parse(found) if isinstance(found, dict) and found.get("operation") == "cp" else None
    return parsed or Noise(line.decode(errors="replace"))


def _parse(found: dict[str, Any]) -> Success | Failure | None:
    source, destination = found.get("source"), found.get("destination")
    if found.get("success") is True and isinstance(source, str) and isinstance(destination, str):
        return Success(source, destination, _size(found.get("object")))
    command, error = found.get("command"), found.get("error")
    if isinstance(command, str) and isinstance(error, str):
        return Failure(command, error)
    return None


def _size(described: object) -> int | None:
    if not isinstance(described, dict):
        return None
    # The size of a file is always told, but 0 is left out; of an object copied remotely it never is.
    size = described.get("size", None if "key" in described else 0)
    return size if isinstance(size, int) and not isinstance(size, bool) else None
