"""The document ``_metadata``: what a checkpoint consists of.

One line of ASCII, then a body of JSON::

    statelift-checkpoint <version> <bytes of the body> <CRC64NVME of the body, 16 hex digits>
    {
     "checkpoint": 7, ...
     "states": [
    {"backend": "...", "checkpoint": 7, "key_groups": [0, 127], ..., "shared": [
    {"name": "000012.sst", "kind": "relative", "scope": "shared", "path": "...", "size": 1, ...},

The checksum covers every byte of the body and the first line is matched digit by digit, so that
no damaged document is ever read as another one. Keys are hexadecimal, inline state is base64.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...backends.checksums import crc64nvme
from ...backends.errors import CheckpointError
from ..handles import (
    FileHandle,
    InMemoryHandle,
    KeyedStateHandle,
    KeyGroupRange,
    RelativeFileHandle,
    SegmentHandle,
    StateFile,
)
from .layout import SCOPES, refuse_climbing

VERSION = 1
#: How every document begins.
MAGIC = b"statelift-checkpoint "
_HEAD = re.compile(rb"statelift-checkpoint ([1-9][0-9]*) (0|[1-9][0-9]*) ([0-9a-f]{16})\n")
_LONGEST_HEAD = 80
_ANOTHER = "use another checkpoint; this one cannot be restored"
#: The kind of a snapshot that shares no file with any other and may be moved.
SAVEPOINT = "savepoint"

FileLike = FileHandle | RelativeFileHandle


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
        CheckpointError: a handle is of a kind, or a value of a form, that the document cannot hold.
    """
    try:
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
        yield f' "{key}": {_json(value)},\n'
    yield ' "states": ['
    for index, state in enumerate(metadata.states):
        yield ",\n" if index else "\n"
        yield from _state_text(state)
    yield "\n ]\n}\n"


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False)


def _state_text(state: KeyedStateHandle) -> Iterator[str]:
    head = {
        "backend": state.backend_id,
        "checkpoint": state.checkpoint_id,
        "format": state.format,
        "key_groups": [state.key_groups.first, state.key_groups.last],
        "max_parallelism": state.max_parallelism,
    }
    yield _json(head)[:-1]
    for name, files in (("shared", state.shared), ("private", state.private)):
        yield f', "{name}": ['
        for index, file in enumerate(files):
            yield ",\n" if index else "\n"
            yield _json(_file_record(file))
        yield "]"
    yield "}"


def _file_record(file: StateFile) -> dict[str, Any]:
    record: dict[str, Any] = {"name": _plain_name(file.name), **_handle_record(file.handle)}
    if file.smallest is not None:
        record["smallest"] = file.smallest.hex()
    if file.largest is not None:
        record["largest"] = file.largest.hex()
    if file.level is not None:
        record["level"] = file.level
    return record


def _handle_record(handle: object) -> dict[str, Any]:
    match handle:
        case InMemoryHandle():
            return {"kind": "inline", "data": base64.b64encode(handle.data).decode()}
        case RelativeFileHandle():
            refuse_climbing(handle.path, "the checkpoint")
            return {"kind": "relative", "scope": _scope(handle.scope), "path": handle.path, **_whole(handle)}
        case FileHandle():
            return {"kind": "file", "uri": handle.uri, **_whole(handle)}
        case SegmentHandle():
            record = {"kind": "segment", "file": _handle_record(handle.file), "offset": handle.offset}
            return {**record, "size": handle.size, **_checksum(handle.crc64nvme)}
    raise CheckpointError(f"the checkpoint cannot hold a {type(handle).__name__}")


def _whole(handle: FileLike) -> dict[str, Any]:
    etag = {} if handle.etag is None else {"etag": handle.etag}
    return {"size": handle.size, **_checksum(handle.crc64nvme), **etag}


def _checksum(value: int | None) -> dict[str, str]:
    return {} if value is None else {"crc64nvme": f"{value:016x}"}


def decode(document: bytes, *, name: str) -> CheckpointMetadata:
    """Read a document.

    Args:
        name: of the checkpoint, for messages.

    Raises:
        CheckpointError: the document is damaged, of an unknown version, or holds what it must not.
    """
    body = _checked_body(document, name)
    try:
        return _metadata(json.loads(body), name)
    except CheckpointError:
        raise
    except KeyError as error:
        raise CheckpointError(f"{name}: the metadata lacks {error.args[0]!r}", remedy=_ANOTHER) from error
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CheckpointError(f"{name}: the metadata is malformed: {error}", remedy=_ANOTHER) from error


def _checked_body(document: bytes, name: str) -> bytes:
    head = _HEAD.match(document[:_LONGEST_HEAD])
    if head is None:
        what = "empty" if not document else "not a checkpoint's, or damaged in its first line"
        raise CheckpointError(f"{name}: the metadata is {what}", remedy=_ANOTHER)
    version, length = int(head[1]), int(head[2])
    if version != VERSION:
        raise CheckpointError(
            f"{name}: the metadata has version {version}, this statelift reads version {VERSION}",
            remedy="use the version of statelift that wrote it, or a newer one",
        )
    body = document[head.end() :]
    if len(body) != length:
        raise CheckpointError(f"{name}: the metadata has {len(body)} bytes instead of {length}", remedy=_ANOTHER)
    if crc64nvme(body) != int(head[3], 16):
        raise CheckpointError(f"{name}: the metadata is damaged: its checksum does not match", remedy=_ANOTHER)
    return body


def _metadata(record: dict[str, Any], name: str) -> CheckpointMetadata:
    created = record["created"]
    properties = record["properties"]
    if isinstance(created, bool) or not isinstance(created, int | float):
        raise TypeError("created is not a number")
    if not all(isinstance(value, str) for value in properties.values()):
        raise TypeError("a property is not a text")
    metadata = CheckpointMetadata(
        checkpoint_id=_count(record["checkpoint"]),
        max_parallelism=_count(record["max_parallelism"]),
        parallelism=_count(record["parallelism"]),
        states=tuple(_state(each, name) for each in record["states"]),
        kind=_text(record["kind"]),
        created=created,
        properties=properties,
    )
    if not 1 <= metadata.parallelism <= metadata.max_parallelism:
        raise ValueError(f"parallelism {metadata.parallelism} of at most {metadata.max_parallelism}")
    return metadata


def _state(record: dict[str, Any], name: str) -> KeyedStateHandle:
    first, last = record["key_groups"]
    key_groups, most = KeyGroupRange(_count(first), _whole_number(last)), _count(record["max_parallelism"])
    if not first - 1 <= last < most:
        raise ValueError(f"key groups {first} to {last} of {most}")
    return KeyedStateHandle(
        key_groups=key_groups,
        max_parallelism=most,
        backend_id=_text(record["backend"]),
        checkpoint_id=_count(record["checkpoint"]),
        shared=tuple(_file(each, name) for each in record["shared"]),
        private=tuple(_file(each, name) for each in record["private"]),
        format=_text(record["format"]),
    )


def _file(record: dict[str, Any], name: str) -> StateFile:
    smallest, largest, level = record.get("smallest"), record.get("largest"), record.get("level")
    return StateFile(
        _plain_name(record["name"], name),
        _handle(record, name),
        None if smallest is None else bytes.fromhex(smallest),
        None if largest is None else bytes.fromhex(largest),
        None if level is None else _count(level),
    )


def _handle(record: dict[str, Any], name: str) -> InMemoryHandle | FileHandle | RelativeFileHandle | SegmentHandle:
    kind = record["kind"]
    if kind == "inline":
        return InMemoryHandle(base64.b64decode(record["data"], validate=True))
    if kind == "segment":
        return _segment(record, name)
    return _whole_file(kind, record, name)


def _segment(record: dict[str, Any], name: str) -> SegmentHandle:
    file = _whole_file(record["file"]["kind"], record["file"], name)
    offset, size = _count(record["offset"]), _count(record["size"])
    if offset + size > file.size:
        raise ValueError(f"a segment ends at {offset + size} of {file.size} bytes")
    return SegmentHandle(file, offset, size, _crc(record))


def _whole_file(kind: str, record: dict[str, Any], name: str) -> FileLike:
    etag = record.get("etag")
    known = _count(record["size"]), _crc(record), None if etag is None else _text(etag)
    if kind == "relative":
        path = _text(record["path"])
        refuse_climbing(path, name)
        return RelativeFileHandle(_scope(record["scope"], name), path, *known)
    if kind == "file":
        refuse_climbing(_text(record["uri"]), name, relative=False)
        return FileHandle(record["uri"], *known)
    raise CheckpointError(
        f"{name}: unknown kind of state handle {kind!r}",
        remedy="use the version of statelift that wrote it, or a newer one",
    )


def _plain_name(name: str, checkpoint: str = "the checkpoint") -> str:
    """A file's own name: restoring joins it to a directory, which it must not leave."""
    refuse_climbing(_text(name), checkpoint)
    if "/" in name:
        raise CheckpointError(f"{checkpoint}: the file name {name!r} is a path", remedy=_ANOTHER)
    return name


def _scope(scope: str, name: str = "the checkpoint") -> str:
    if scope not in SCOPES:
        raise CheckpointError(f"{name}: unknown scope {scope!r}", remedy=f"one of {', '.join(SCOPES)}")
    return scope


def _crc(record: dict[str, Any]) -> int | None:
    text = record.get("crc64nvme")
    if text is None:
        return None
    if len(text) != 16:
        raise ValueError(f"not a CRC64NVME: {text!r}")
    return int(text, 16)


def _whole_number(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value
