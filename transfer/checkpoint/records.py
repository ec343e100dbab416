"""The records in ``_metadata`` of subtasks, files and handles: written, and read with distrust.

Keys are hexadecimal, inline state is base64. What is read may have been tampered with: every value
is checked before anything is made of it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any

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

NEWER = "use the version of statelift that wrote it, or a newer one"
ANOTHER = "use another checkpoint; this one cannot be restored"
_LARGEST = (1 << 63) - 1
_MOST_KEY_GROUPS = 1 << 15  # a RocksDB key begins with its key group as two bytes; see `keyed.key_groups`

FileLike = FileHandle | RelativeFileHandle


def json_text(value: object) -> str:
    return json.dumps(value, allow_nan=False)


def state_text(state: KeyedStateHandle) -> Iterator[str]:
    """A subtask's record, one file a line."""
    head = {
        "backend": state.backend_id,
        "checkpoint": state.checkpoint_id,
        "format": state.format,
        "key_groups": [state.key_groups.first, state.key_groups.last],
        "max_parallelism": state.max_parallelism,
    }
    yield json_text(head)[:-1]
    for name, files in (("shared", state.shared), ("private", state.private)):
        yield f', "{name}": ['
        for index, file in enumerate(files):
            yield ",\n" if index else "\n"
            yield json_text(_file_record(file))
        yield "]"
    yield "}"


def _file_record(file: StateFile) -> dict[str, Any]:
    record: dict[str, Any] = {"name": _plain_name(file.name), **handle_record(file.handle)}
    if file.smallest is not None:
        record["smallest"] = file.smallest.hex()
    if file.largest is not None:
        record["largest"] = file.largest.hex()
    if file.level is not None:
        record["level"] = file.level
    return record


def handle_record(handle: object) -> dict[str, Any]:
    match handle:
        case InMemoryHandle():
            return {"kind": "inline", "data": base64.b64encode(handle.data).decode()}
        case RelativeFileHandle():
            refuse_climbing(handle.path, "the checkpoint")
            return {"kind": "relative", "scope": _scope(handle.scope), "path": handle.path, **_whole(handle)}
        case FileHandle():
            return {"kind": "file", "uri": handle.uri, **_whole(handle)}
        case SegmentHandle():
            record = {"kind": "segment", "file": handle_record(handle.file), "offset": handle.offset}
            return {**record, "size": handle.size, **_checksum(handle.crc64nvme)}
    raise CheckpointError(f"the checkpoint cannot hold a {type(handle).__name__}")


def _whole(handle: FileLike) -> dict[str, Any]:
    etag = {} if handle.etag is None else {"etag": handle.etag}
    return {"size": handle.size, **_checksum(handle.crc64nvme), **etag}


def _checksum(value: int | None) -> dict[str, str]:
    return {} if value is None else {"crc64nvme": f"{value:016x}"}


def read_state(record: dict[str, Any], name: str) -> KeyedStateHandle:
    """What `state_text` wrote.

    Raises:
        CheckpointError: it holds what it must not; ``name`` is the checkpoint's.
        KeyError, TypeError, ValueError, AttributeError: it is malformed.
    """
    first, last = record["key_groups"]
    key_groups, most = KeyGroupRange(count(first), _whole_number(last)), count(record["max_parallelism"])
    if not (first - 1 <= last < most <= _MOST_KEY_GROUPS):
        raise ValueError(f"key groups {first} to {last} of {most}")
    return KeyedStateHandle(
        key_groups=key_groups,
        max_parallelism=most,
        backend_id=text(record["backend"]),
        checkpoint_id=count(record["checkpoint"]),
        shared=tuple(_file(each, name) for each in record["shared"]),
        private=tuple(_file(each, name) for each in record["private"]),
        format=text(record["format"]),
    )


def _file(record: dict[str, Any], name: str) -> StateFile:
    smallest, largest, level = record.get("smallest"), record.get("largest"), record.get("level")
    return StateFile(
        _plain_name(record["name"], name),
        read_handle(record, name),
        None if smallest is None else bytes.fromhex(smallest),
        None if largest is None else bytes.fromhex(largest),
        None if level is None else count(level),
    )


def read_handle(record: dict[str, Any], name: str) -> InMemoryHandle | FileHandle | RelativeFileHandle | SegmentHandle:
    kind = record["kind"]
    if kind == "inline":
        return InMemoryHandle(base64.b64decode(record["data"], validate=True))
    if kind == "segment":
        return _segment(record, name)
    return _whole_file(kind, record, name)


def _segment(record: dict[str, Any], name: str) -> SegmentHandle:
    file = _whole_file(record["file"]["kind"], record["file"], name)
    offset, size = count(record["offset"]), count(record["size"])
    if offset + size > file.size:
        raise ValueError(f"a segment ends at {offset + size} of {file.size} bytes")
    return SegmentHandle(file, offset, size, _crc(record))


def _whole_file(kind: str, record: dict[str, Any], name: str) -> FileLike:
    etag = record.get("etag")
    known = count(record["size"]), _crc(record), None if etag is None else text(etag)
    if kind == "relative":
        path = text(record["path"])
        refuse_climbing(path, name)
        return RelativeFileHandle(_scope(record["scope"], name), path, *known)
    if kind == "file":
        refuse_climbing(text(record["uri"]), name, relative=False)
        return FileHandle(record["uri"], *known)
    raise CheckpointError(
        f"{name}: unknown kind of state handle {kind!r}",
        remedy=NEWER,
    )


def _plain_name(name: str, checkpoint: str = "the checkpoint") -> str:
    """A file's own name: restoring joins it to a directory, which it must not leave."""
    refuse_climbing(text(name), checkpoint)
    if "/" in name:
        raise CheckpointError(f"{checkpoint}: the file name {name!r} is a path", remedy=ANOTHER)
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


def count(value: object) -> int:
    """A count of bytes or things that any store or disk can have."""
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise TypeError(f"{value!r} is not a count")
    return value


def text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def refuse_contradictions(states: Iterable[KeyedStateHandle], name: str) -> None:
    """Refuse what no restore could follow.

    Raises:
        CheckpointError: a subtask has two files of one name, or one file has two sizes.
    """
    sizes: dict[tuple[str, ...], int] = {}
    for subtask, state in enumerate(states):
        names: set[str] = set()
        for file in (*state.shared, *state.private):
            if file.name in names:
                raise CheckpointError(f"{name}: subtask {subtask} has two files {file.name!r}", remedy=ANOTHER)
            names.add(file.name)
            whole = file.handle.file if isinstance(file.handle, SegmentHandle) else file.handle
            if isinstance(whole, InMemoryHandle):
                continue
            place = (whole.scope, whole.path) if isinstance(whole, RelativeFileHandle) else (whole.uri,)
            if sizes.setdefault(place, whole.size) != whole.size:
                sized = f"{sizes[place]} and {whole.size} bytes"
                raise CheckpointError(f"{name}: the file {'/'.join(place)} has two sizes, {sized}", remedy=ANOTHER)
