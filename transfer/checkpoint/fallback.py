"""Going back to an older checkpoint where one cannot be restored; only when asked to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...backends.errors import (
    CheckpointError,
    CheckpointNotFound,
    CopyFailed,
    IntegrityError,
    SourceNotFound,
    TransferError,
)
from .layout import CheckpointLocation
from .store import CheckpointStore

_LOG = logging.getLogger("statelift")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class FellBack(Generic[_Result]):
    """What came of the first checkpoint that could be restored.

    Args:
        checkpoint: the one that was used.
        failures: of those before it, newest first, with the reason.
    """

    result: _Result
    checkpoint: str
    failures: tuple[tuple[str, TransferError], ...] = ()

    @property
    def reason(self) -> str | None:
        """Why it was not the one that was asked for; None where it was."""
        return "; ".join(str(error) for _, error in self.failures) or None


def with_fall_back(
    store: CheckpointStore, checkpoint: str, attempt: Callable[[str], _Result], *, fall_back: bool = True
) -> FellBack[_Result]:
    """Try a checkpoint, and after damage each older one of its base; without ``fall_back`` only the first.

    Raises:
        TransferError: of the checkpoint that was asked for, where none can be restored, or where
            what failed is not the checkpoint: a denied access or a lost connection.
    """
    failures: list[tuple[str, TransferError]] = []
    for each in [checkpoint, *(_older(store, checkpoint) if fall_back else [])]:
        try:
            return FellBack(attempt(each), each, tuple(failures))
        except TransferError as error:
            if not (fall_back and is_damage(error)):
                raise
            _LOG.warning("%s cannot be restored: %s", each, error)
            failures.append((each, error))
    raise failures[0][1]


def _older(store: CheckpointStore, checkpoint: str) -> list[str]:
    location = CheckpointLocation.parse(checkpoint)
    if location.is_savepoint:
        return []
    below = [each for each in store.list(location.base) if each.checkpoint_id < location.checkpoint_id]
    return [each.directory for each in reversed(below)]


def is_damage(error: TransferError) -> bool:
    """Whether the checkpoint itself is at fault: a file missing, short or corrupt, or damaged metadata."""
    if isinstance(error, CopyFailed):
        return any(map(is_damage, error.errors))
    if isinstance(error, CheckpointNotFound):
        return False
    return isinstance(error, CheckpointError | SourceNotFound | IntegrityError)
