"""``statelift checkpoint ls``: the checkpoints of a base, and the savepoints below it, in one table."""

from __future__ import annotations

import argparse
from typing import Any

from ...backends.errors import CheckpointNotFound
from ..checkpoint.contents import Entry, entries
from ..checkpoint.store import CheckpointStore, base_of
from .arguments import configuration_of
from .inspect import created_text
from .outcome import print_json
from .text import size_text, table_text

_HEAD = ["checkpoint", "kind", "created", "parallelism", "files", "size", "shared with others", "own"]


def run(arguments: argparse.Namespace) -> int:
    with CheckpointStore(configuration_of(arguments)) as store:
        found = entries(store, arguments.base)
    if not found:
        raise CheckpointNotFound(
            f"there is no checkpoint below {arguments.base}",
            remedy="name the directory that holds chk-<number>, or a savepoint",
        )
    damaged = [each for each in found if each.error]
    if arguments.json:
        records = [_record(each) for each in found]
        errors = [{"error": type(each.error).__name__, "message": str(each.error)} for each in damaged]
        print_json({"ok": not damaged, "checkpoints": records, "errors": errors})
    else:
        print(table_text([_HEAD, *(_row(each, arguments.base) for each in found)], right=(3, 4, 5, 6, 7)))
    return 1 if damaged else 0


def _row(entry: Entry, base: str) -> list[str]:
    directory, metadata = entry.location.directory, entry.metadata
    name = directory.removeprefix(f"{base_of(base)}/")
    if metadata is None:
        return [name, "damaged", *["-"] * 6]
    sizes = (entry.bytes, entry.bytes_shared, entry.bytes - entry.bytes_shared)
    numbers = [str(metadata.parallelism), str(len(entry.files))]
    return [name, metadata.kind, created_text(metadata), *numbers, *map(size_text, sizes)]


def _record(entry: Entry) -> dict[str, Any]:
    metadata = entry.metadata
    head: dict[str, Any] = {"checkpoint": str(entry.location), "id": entry.location.checkpoint_id}
    if metadata is None:
        return {**head, "error": str(entry.error)}
    return {
        **head,
        "kind": metadata.kind,
        "created": metadata.created,
        "parallelism": metadata.parallelism,
        "max_parallelism": metadata.max_parallelism,
        "files": len(entry.files),
        "bytes": entry.bytes,
        "files_shared": entry.files_shared,
        "bytes_shared": entry.bytes_shared,
    }
