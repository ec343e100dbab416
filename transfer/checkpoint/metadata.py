"""The document ``_metadata``: what a checkpoint consists of.

One line of ASCII, then a body of JSON::

    statelift-checkpoint <version> <bytes of the body> <CRC64NVME of the body, 16 hex digits>
    {
     "checkpoint": 7, ...
     "states": [
    {"backend": "...", "checkpoint": 7, "key_groups": [0, 127], ..., "shared": [
    {"name": "000012.sst", "kind": "relative", "scope": "shared", "path": "...", "size": 1, ...},

The checksum covers every byte of the body and the first line is matched digit by digit, so that
no damaged document is ever read as another one. The records are in `records`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...backends.checksums import crc64nvme
from ...backends.errors import CheckpointError
from ..handles import KeyedStateHandle
from .records import ANOTHER, NEWER, count, json_text, read_state, refuse_contradictions, state_text, text

VERSION = 1
#: How every document begins.
MAGIC = b"statelift-checkpoint "
_HEAD = re.compile(rb"statelift-checkpoint ([1-9][0-9]*) (0|[1-9][0-9]*) ([0-9a-f]{16})\n")
_LONGEST_HEAD = 80
#: The kind of a snapshot that shares no file with any other and may be moved.
SAVEPOINT = "savepoint"
KINDS = ("incremental", "full", SAVEPOINT)
_LATEST = 253402300799  # the last second of the year 9999


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """What one checkpoint consists of.

    Args:
        states: of every subtask.
        kind: ``incremental`` (may use older checkpoints' shared files), ``full`` or ``savepoint``.
        created: seconds since 1970.
        properties: what the job wants to find again.
    """

    checkpoint_id: int
    max_parallelism: int
    parallelism: int
    states: tuple[KeyedStateHandle, ...]
    kind: str = "incremental"
    created: float = 0.0
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(state.size for state in self.states)


def encode(metadata: CheckpointMetadata) -> bytes:
    """The document.

    Raises:
        CheckpointError: a handle is of a kind, or a value of a form, that the document cannot hold;
            or the files contradict each other.
    """
    try:
        refuse_contradictions(metadata.states, f"chk-{metadata.checkpoint_id}")
        body = "".join(_document(metadata)).encode("ascii")
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"chk-{metadata.checkpoint_id}: cannot be written: {error}") from error
    return MAGIC + f"{VERSION} {len(body)} {crc64nvme(body):016x}\n".encode() + body


def _document(metadata: CheckpointMetadata) -> Iterator[str]:
    head = {
        "checkpoint": metadata.checkpoint_id,
        "kind": metadata.kind,
        "created": metadata.created,
        "parallelism": metadata.parallelism,
        "max_parallelism": metadata.max_parallelism,
        "properties": dict(metadata.properties),
    }
    yield "{\n"
    for key, value in head.items():
        yield f' "{key}": {json_text(value)},\n'
    yield ' "states": ['
    for index, state in enumerate(metadata.states):
        yield ",\n" if index else "\n"
        yield from state_text(state)
    yield "\n ]\n}\n"


def decode(document: bytes, *, name: str) -> CheckpointMetadata:
    """Read a document.

    Args:
        name: of the checkpoint, for messages.

    Raises:
        CheckpointError: the document is damaged, of an unknown version, or holds what it must not.
    """
    body = _checked_body(document, name)
    try:
        metadata = _metadata(json.loads(body, parse_constant=_refuse_constant), name)
        refuse_contradictions(metadata.states, name)
    except CheckpointError:
        raise
    except KeyError as error:
        raise CheckpointError(f"{name}: the metadata lacks {error.args[0]!r}", remedy=ANOTHER) from error
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CheckpointError(f"{name}: the metadata is malformed: {error}", remedy=ANOTHER) from error
    return metadata


def _refuse_constant(constant: str) -> object:
    raise ValueError(f"{constant} is no number")


def _checked_body(document: bytes, name: str) -> bytes:
    head = _HEAD.match(document[:_LONGEST_HEAD])
    if head is None:
        what = "empty" if not document else "not a checkpoint's, or damaged in its first line"
        raise CheckpointError(f"{name}: the metadata is {what}", remedy=ANOTHER)
    version, length = int(head[1]), int(head[2])
    if version != VERSION:
        raise CheckpointError(
            f"{name}: the metadata has version {version}, this statelift reads version {VERSION}",
            remedy=NEWER,
        )
    body = document[head.end() :]
    if len(body) != length:
        raise CheckpointError(f"{name}: the metadata has {len(body)} bytes instead of {length}", remedy=ANOTHER)
    if crc64nvme(body) != int(head[3], 16):
        raise CheckpointError(f"{name}: the metadata is damaged: its checksum does not match", remedy=ANOTHER)
    return body


def _metadata(record: dict[str, Any], name: str) -> CheckpointMetadata:
    created = record["created"]
    properties = record["properties"]
    if isinstance(created, bool) or not isinstance(created, int | float):
        raise TypeError("created is not a number")
    if not 0 <= created <= _LATEST:
        raise ValueError(f"created {created} is no time")
    if record["kind"] not in KINDS:
        raise CheckpointError(f"{name}: unknown kind of checkpoint {record['kind']!r}", remedy=NEWER)
    if not all(isinstance(value, str) for value in properties.values()):
        raise TypeError("a property is not a text")
    metadata = CheckpointMetadata(
        checkpoint_id=count(record["checkpoint"]),
        max_parallelism=count(record["max_parallelism"]),
        parallelism=count(record["parallelism"]),
        states=tuple(read_state(each, name) for each in record["states"]),
        kind=text(record["kind"]),
        created=created,
        properties=properties,
    )
    if not 1 <= metadata.parallelism <= metadata.max_parallelism:
        raise ValueError(f"parallelism {metadata.parallelism} of at most {metadata.max_parallelism}")
    return metadata
