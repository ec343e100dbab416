"""Only the newest coordinator of a base may complete checkpoints.

Each coordinator claims the next epoch by creating ``<base>/_epoch-<n>``, conditionally where the
store has conditional writes; one that finds a higher epoch than its own has been replaced.
"""

from __future__ import annotations

import errno

from ...backends.errors import CheckpointError, DestinationError
from ..objects import Objects

_NAME = "_epoch-"


class Epoch:
    """A claim to be the coordinator of a base."""

    def __init__(self, objects: Objects, base: str, number: int) -> None:
        self._objects = objects
        self._base = base
        self.number = number

    @classmethod
    def claim(cls, objects: Objects, base: str, owner: str) -> Epoch:
        """Become the coordinator: whoever was it before can complete nothing any more."""
        while True:
            known = _epochs(objects, base)
            number = max(known, default=0) + 1
            try:
                objects.write(_uri(base, number), owner.encode(), only_if_absent=True)
            except DestinationError as error:
                if error.errno != errno.EEXIST:
                    raise
                continue
            objects.delete([_uri(base, each) for each in known])
            return cls(objects, base, number)

    def check(self) -> None:
        """Raise unless this is still the newest coordinator.

        Raises:
            CheckpointError: another one has taken over, or the claim was removed.
        """
        newest = max(_epochs(self._objects, self._base), default=0)
        if newest != self.number:
            raise CheckpointError(
                f"{self._base}: this coordinator (epoch {self.number}) was replaced by epoch {newest}",
                remedy="end this job: another one runs on the same checkpoints",
            )


def _uri(base: str, number: int) -> str:
    return f"{base}/{_NAME}{number:010d}"


def _epochs(objects: Objects, base: str) -> list[int]:
    prefix = f"{base}/{_NAME}"
    digits = [str(each.uri).rpartition(_NAME)[2] for each in objects.list(prefix)]
    return [int(each) for each in digits if each.isdigit()]
