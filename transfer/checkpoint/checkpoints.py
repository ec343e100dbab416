"""What a checkpoint is to its coordinator: pending, then completed."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ...backends.errors import CheckpointError
from ..handles import KeyedStateHandle
from ..strategy import Sharing
from .layout import CheckpointLocation
from .metadata import CheckpointMetadata

CLAIMED = "claimed"  # property: bases whose files this job may delete


class CheckpointListener(Protocol):
    """Told of each checkpoint's end. A notification may be lost, doubled or late: ids only grow."""

    def completed(self, checkpoint_id: int) -> None: ...
    def aborted(self, checkpoint_id: int) -> None: ...
    def subsumed(self, checkpoint_id: int) -> None: ...


@dataclass(eq=False)
class PendingCheckpoint:
    """A checkpoint that waits for its subtasks.

    Args:
        sharing: what its subtasks may have in common with other checkpoints.
    """

    location: CheckpointLocation
    max_parallelism: int
    parallelism: int
    sharing: Sharing
    states: dict[int, KeyedStateHandle] = field(default_factory=dict)
    in_place: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def checkpoint_id(self) -> int:
        return self.location.checkpoint_id

    @property
    def missing(self) -> list[int]:
        """Subtasks that have not acknowledged yet."""
        return [subtask for subtask in range(self.parallelism) if subtask not in self.states]

    def metadata(self, properties: Mapping[str, str]) -> CheckpointMetadata:
        """What it becomes now that nothing is missing."""
        return CheckpointMetadata(
            checkpoint_id=self.checkpoint_id,
            max_parallelism=self.max_parallelism,
            parallelism=self.parallelism,
            states=tuple(self.states[subtask] for subtask in sorted(self.states)),
            kind="incremental" if self.sharing is Sharing.FORWARD_BACKWARD else "full",
            created=time.time(),
            properties=properties,
        )


@dataclass(frozen=True)
class CompletedCheckpoint:
    """A checkpoint that exists, with what a restore needs to know of it."""

    location: CheckpointLocation
    metadata: CheckpointMetadata
    deletable: bool = True

    @property
    def checkpoint_id(self) -> int:
        return self.location.checkpoint_id


def claims(bases: Collection[str]) -> dict[str, str]:
    """The property of a checkpoint that says which bases its job has claimed."""
    return {CLAIMED: json.dumps(sorted(bases))} if bases else {}


def claimed_by(checkpoint: CompletedCheckpoint) -> list[str]:
    """The bases in a checkpoint's `claims`.

    Raises:
        CheckpointError: they are not bases.
    """
    text = checkpoint.metadata.properties.get(CLAIMED, "[]")
    try:
        bases = json.loads(text)
    except (ValueError, RecursionError):
        bases = None
    # A short one would make everything below it this job's to delete.
    if not isinstance(bases, list) or not all(isinstance(each, str) and each.strip("/") for each in bases):
        raise CheckpointError(f"{checkpoint.location}: the property {CLAIMED!r} names no bases: {text[:100]!r}")
    return bases
