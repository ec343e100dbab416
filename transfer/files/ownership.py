"""Who may delete a physical file, and how that changes: only ever towards the coordinator."""

from __future__ import annotations

from enum import Enum


class Ownership(Enum):
    """Owner of a physical file (seed 000, "File Management")."""

    #: The database alone: files that change, such as MANIFEST and CURRENT. Never handed over.
    PRIVATE = "privately owned by the database"
    #: The database, until a checkpoint takes the file over: SST files, which never change.
    SHAREABLE = "shareably owned by the database"
    #: The coordinator: restored from a checkpoint, or handed over to one. No worker deletes it.
    NOT_OWNED = "not owned"


def ownership_of_new_file(logical_path: str) -> Ownership:
    """By the *database's* name for the file: only an SST file is immutable."""
    return Ownership.SHAREABLE if logical_path.endswith(".sst") else Ownership.PRIVATE
