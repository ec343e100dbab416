"""``statelift inspect``: what a checkpoint consists of, or which checkpoints there are."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from ...backends.errors import CheckpointError, CheckpointNotFound
from ..checkpoint.layout import EXCLUSIVE, SHARED, TASKOWNED, CheckpointLocation
from ..checkpoint.metadata import CheckpointMetadata
from ..checkpoint.store import CheckpointStore
from ..file_systems import FileSystems
from ..handles import InMemoryHandle, KeyedStateHandle, RelativeFileHandle, SegmentHandle, StateFile
from ..linking import Transfer, expected_transfers
from .arguments import add_common, configuration_of
from .outcome import print_json
from .text import count_text, size_text, table_text

_INLINE, _ELSEWHERE = "inline", "elsewhere"
_PLACES = (SHARED, EXCLUSIVE, TASKOWNED, _INLINE, _ELSEWHERE)


def define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="<base>/chk-<number>, or a savepoint; <base> lists its checkpoints"
    )
    parser.add_argument("--into", metavar="DIR", help="say how a restore into this directory would get each file")
    parser.add_argument("--files", action="store_true", help="list every file")
    add_common(parser, copies=False)


def run(arguments: argparse.Namespace) -> int:
    with CheckpointStore(configuration_of(arguments)) as store:
        if not _is_snapshot(store, arguments.checkpoint):
            return _list(store, arguments)
        location, metadata = store.read(arguments.checkpoint)
    transfers = _transfers(location, metadata, arguments)
    if arguments.json:
        print_json({**_document(location, metadata), **_transfer_records(transfers)})
    else:
        print("\n".join(_lines(location, metadata, files=arguments.files)))
        for each in transfers or ():
            print(f"{count_text(each.files, 'file')}, {size_text(each.bytes)} by {each}")
    return 0


def _transfers(
    location: CheckpointLocation, metadata: CheckpointMetadata, arguments: argparse.Namespace
) -> tuple[Transfer, ...] | None:
    if arguments.into is None:
        return None
    files = [file for state in metadata.states for file in _files(state)]
    with FileSystems(configuration_of(arguments)) as file_systems:
        return expected_transfers(file_systems, location, files, arguments.into)


def _transfer_records(transfers: tuple[Transfer, ...] | None) -> dict[str, Any]:
    if transfers is None:
        return {}
    records = [
        {"method": each.decision.method.value, "reason": each.decision.reason, "files": each.files, "bytes": each.bytes}
        for each in transfers
    ]
    return {"transfers": records}


def _is_snapshot(store: CheckpointStore, name: str) -> bool:
    """Whether it names a checkpoint, or a directory that is a savepoint; else it can only be a base."""
    try:
        location = CheckpointLocation.named(name)
    except CheckpointError:
        return False
    return not location.is_savepoint or store.objects.exists(location.metadata)


def _list(store: CheckpointStore, arguments: argparse.Namespace) -> int:
    found = store.list(arguments.checkpoint)
    if not found:
        raise CheckpointNotFound(
            f"there is no checkpoint below {arguments.checkpoint}", remedy="name <base>/chk-<number> or its <base>"
        )
    if arguments.json:
        print_json({"ok": True, "checkpoints": [str(each) for each in found]})
    else:
        print("\n".join(map(str, found)))
    return 0


def place_of(file: StateFile) -> str:
    """``shared``, ``exclusive``, ``taskowned``, ``inline``, or ``elsewhere`` for absolute paths."""
    handle = file.handle.file if isinstance(file.handle, SegmentHandle) else file.handle
    if isinstance(handle, InMemoryHandle):
        return _INLINE
    return handle.scope if isinstance(handle, RelativeFileHandle) else _ELSEWHERE


def _files(state: KeyedStateHandle) -> tuple[StateFile, ...]:
    return (*state.shared, *state.private)


def _by_place(states: tuple[KeyedStateHandle, ...]) -> dict[str, tuple[int, int]]:
    """(files, bytes) per place that holds any; a file that several subtasks share counts once."""
    found: dict[str, tuple[int, int]] = {}
    seen: set[object] = set()
    for file in (file for state in states for file in _files(state)):
        place = place_of(file)
        if place != _INLINE and file.handle in seen:
            continue
        seen.add(file.handle)
        count, size = found.get(place, (0, 0))
        found[place] = count + 1, size + file.size
    return {place: found[place] for place in _PLACES if place in found}


def created_text(metadata: CheckpointMetadata) -> str:
    return datetime.fromtimestamp(metadata.created, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _lines(location: CheckpointLocation, metadata: CheckpointMetadata, *, files: bool) -> Iterator[str]:
    places = _by_place(metadata.states)
    count, total = (sum(each) for each in zip((0, 0), *places.values(), strict=True))
    head = [
        ["checkpoint", str(location)],
        ["created", f"{created_text(metadata)}, {metadata.kind}"],
        ["parallelism", f"{metadata.parallelism} (at most {metadata.max_parallelism})"],
        ["size", f"{size_text(total)} in {count_text(count, 'file')}"],
        *(["", f"{size_text(size)} {place} in {number}"] for place, (number, size) in places.items()),
        *([key, value] for key, value in sorted(metadata.properties.items())),
    ]
    yield table_text(head)
    if metadata.states:
        yield ""
        yield table_text(_subtask_rows(metadata), right=range(4 + len(places)))
    if files:
        yield ""
        yield table_text(_file_rows(metadata), right=(0, 2))


def _subtask_rows(metadata: CheckpointMetadata) -> list[list[str]]:
    places = list(_by_place(metadata.states))
    rows = [["subtask", "key groups", "files", "size", *places]]
    for index, state in enumerate(metadata.states):
        own = _by_place((state,))
        sizes = [size_text(own[place][1]) if place in own else "-" for place in places]
        groups = f"{state.key_groups.first}-{state.key_groups.last}"
        rows.append([str(index), groups, str(len(_files(state))), size_text(state.size), *sizes])
    return rows


def _file_rows(metadata: CheckpointMetadata) -> list[list[str]]:
    rows = [["subtask", "file", "size", "place", "path"]]
    for index, state in enumerate(metadata.states):
        rows += [[str(index), each.name, size_text(each.size), place_of(each), _path(each)] for each in _files(state)]
    return rows


def _path(file: StateFile) -> str:
    handle = file.handle
    if isinstance(handle, InMemoryHandle):
        return ""
    if isinstance(handle, SegmentHandle):
        whole = handle.file.path if isinstance(handle.file, RelativeFileHandle) else handle.file.uri
        return f"{whole} from byte {handle.offset}"
    return handle.path if isinstance(handle, RelativeFileHandle) else handle.uri


def _document(location: CheckpointLocation, metadata: CheckpointMetadata) -> dict[str, Any]:
    places = _by_place(metadata.states)
    return {
        "ok": True,
        "checkpoint": str(location),
        "created": metadata.created,
        "kind": metadata.kind,
        "parallelism": metadata.parallelism,
        "max_parallelism": metadata.max_parallelism,
        "properties": dict(metadata.properties),
        "bytes": sum(size for _, size in places.values()),
        "files": sum(count for count, _ in places.values()),
        "places": _place_records(metadata.states),
        "subtasks": [_state_record(index, state) for index, state in enumerate(metadata.states)],
    }


def _place_records(states: tuple[KeyedStateHandle, ...]) -> dict[str, dict[str, int]]:
    return {place: {"files": count, "bytes": size} for place, (count, size) in _by_place(states).items()}


def _state_record(index: int, state: KeyedStateHandle) -> dict[str, Any]:
    return {
        "subtask": index,
        "key_groups": [state.key_groups.first, state.key_groups.last],
        "backend_id": state.backend_id,
        "bytes": state.size,
        "places": _place_records((state,)),
        "files": [
            {"name": each.name, "bytes": each.size, "place": place_of(each), "path": _path(each), "level": each.level}
            for each in _files(state)
        ],
    }
