"""One subtask's restore on this machine: what is wanted, whether the disk has it, and what it took."""

from __future__ import annotations

import hashlib
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...backends.options import Configuration
from ..checkpoint.metadata import encode
from ..checkpoint.store import CheckpointStore
from ..downloader import INLINE
from ..file_systems import FileSystems
from ..handles import key_groups_of
from ..keyed.restore import RestoreReport, plan_restore, restore
from ..strategy import ClaimMode
from .file_pool import PooledDownloader
from .local_store import LocalStore, Version, local_root
from .options import LocalStateOptions

_CHECKS = ("size", "crc32c", "crc64nvme")
REUSE = "reuse"
_HAD = "reuse: this version was restored here before"


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What restoring one subtask's state did.

    Args:
        bytes: of all of the state's files, those that were reused included.
        bytes_reused: of files that this disk had.
        method: the backends that moved files; ``reuse`` where none had to, ``inline`` where there are none.
        reason: what `transfer.strategy` decided for the files, and why.
        seconds: from the question to the state's being on the disk.
        cpu_seconds: of this process and the children that it has waited for.
        verified: the weakest check that any moved or reused file passed.
    """

    files: int = 0
    bytes: int = 0
    bytes_reused: int = 0
    method: str = REUSE
    reason: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    verified: str = "size"


def _clocks() -> tuple[float, float]:
    """Seconds of wall time, and of CPU time of this process and its ended children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return time.monotonic(), sum(usage.ru_utime + usage.ru_stime for usage in usages)


@dataclass
class Restoration:
    """The restore of one subtask's state of a checkpoint.

    Args:
        root: overrides the option ``state.local-dir``.
        claim: who owns the checkpoint from now on; see `keyed.restore.restore`.

    Raises:
        CheckpointNotFound: there is no such checkpoint.
        CheckpointError: its metadata is damaged.
        UsageError: the subtask or the parallelism is out of range.
    """

    checkpoint: str
    subtask: int
    parallelism: int
    configuration: Configuration
    root: Path | None = None
    claim: ClaimMode = ClaimMode.NO_CLAIM
    _started: tuple[float, float] = field(default_factory=_clocks)

    def __post_init__(self) -> None:
        with CheckpointStore(self.configuration) as checkpoints:
            self.location, self.metadata = checkpoints.read(self.checkpoint)
        key_groups = key_groups_of(self.subtask, self.parallelism, self.metadata.max_parallelism)
        self.plan = plan_restore(self.metadata.states, key_groups)
        # The lineage in a restored directory says what its next snapshot may reference.
        digest = hashlib.sha256(self.claim.value.encode() + encode(self.metadata)).hexdigest()
        self.version = Version(self.location.base, self.location.checkpoint_id, digest, key_groups)
        self.store = local_store(self.configuration, self.root, self.version.slot)

    def run(self) -> Restored:
        """Have the state on this disk."""
        with self.store.present(self.version, self._fill) as (_, facts, is_new):
            return self._restored(facts, is_new)

    @contextmanager
    def working_copy(self) -> Iterator[tuple[Path, Restored]]:
        """A copy of the state to open and write, gone after the block; and what it took."""
        with self.store.working_copy(self.version, self._fill) as (directory, facts, is_new):
            yield directory, self._restored(facts, is_new)

    def _fill(self, directory: Path) -> dict[str, Any]:
        with FileSystems(self.configuration) as file_systems:
            downloader = PooledDownloader(file_systems, self.store.pool)
            _, report = restore(self.plan, self.location, directory, downloader, claim=self.claim)
        return _facts(report)

    def _restored(self, facts: dict[str, Any], is_new: bool) -> Restored:
        wall, cpu = (now - then for now, then in zip(_clocks(), self._started, strict=True))
        had = {"method": REUSE, "reason": _HAD, "bytes_reused": facts["bytes"]}
        own = {} if is_new else had
        return Restored(**{**facts, **own}, seconds=wall, cpu_seconds=cpu)


def local_store(configuration: Configuration, root: Path | None, key: str) -> LocalStore:
    """The store of restored state on this machine."""
    return LocalStore(root or local_root(configuration, key), keep=configuration.of(LocalStateOptions).versions)


def _facts(report: RestoreReport) -> dict[str, Any]:
    copy = report.copy
    # Files from the metadata itself are checked with it.
    files = [file for file in copy.files if file.method != INLINE]
    reused = sum(file.bytes for file in files if file.method == REUSE)
    moving = sorted({file.method for file in files} - {REUSE})
    return {
        "files": len(copy.files),
        "bytes": copy.bytes,
        "bytes_reused": reused,
        "method": "+".join(moving) or (REUSE if files else INLINE),
        "reason": "; ".join(map(str, report.transfers)),
        "verified": min((file.verified for file in files), key=_CHECKS.index, default="crc64nvme"),
    }
