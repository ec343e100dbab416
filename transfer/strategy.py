"""The file transfer strategy: reuse, else paths copy, else bytes copy (seed 000).

Two decision tables, one for snapshots and one for restores. The first row that applies decides;
its words are the reason that reports and ``inspect`` show. What the tables leave to the single
file follows in `Plan.for_file`. Nothing else decides; `transfer.linking` carries the decisions out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ..backends.errors import UsageError
from ..backends.request import locate
from .files.ownership import Ownership
from .handles import InMemoryHandle, SegmentHandle, StateHandle


class Method(Enum):
    """How a file gets from the working directory to the checkpoint or back."""

    REUSE = "reuse"
    PATHS_COPY = "paths copy"
    BYTES_COPY = "bytes copy"


class Sharing(Enum):
    """Which files a snapshot may have in common with others (FLIP-203)."""

    #: May use older files, later ones may use its files: an incremental checkpoint.
    FORWARD_BACKWARD = "forward and backward"
    #: Brings all of its files, later ones may use them: a full checkpoint.
    FORWARD = "forward"
    #: Isolated both ways: a savepoint.
    NO_SHARING = "none"


class ClaimMode(Enum):
    """Who owns the snapshot that a job was restored from (FLIP-193)."""

    #: The new job: it deletes the snapshot once it needs it no more.
    CLAIM = "claim"
    #: Its old owner: the new job needs it until its own first checkpoint, which is full.
    NO_CLAIM = "no-claim"
    #: Its old owner, yet the new job uses its files for ever: never delete them.
    LEGACY = "legacy"

    @classmethod
    def of(cls, name: str | ClaimMode) -> ClaimMode:
        """The mode by its name, in Flink's spelling (``NO_CLAIM``) or this enum's (``no-claim``).

        Raises:
            UsageError: there is no such mode.
        """
        if isinstance(name, ClaimMode):
            return name
        try:
            return cls(name.lower().replace("_", "-"))
        except ValueError:
            raise UsageError(f"there is no claim mode {name!r}", remedy="CLAIM, NO_CLAIM or LEGACY") from None


@dataclass(frozen=True, slots=True)
class Decision:
    """A method and, in words, why."""

    method: Method
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the snapshot table asks about.

    Args:
        working: directory that holds the database's files; None where only a local one exists.
        target: directory of the checkpoint that the files go to.
        shared: the checkpoint's shared directory.
        paths_copy: whether a backend can copy from ``working`` to ``target`` by paths.
        merging: whether small files are merged, which passes bytes through a stream.
        real_files: see `Plan`.
    """

    working: str | None
    target: str
    shared: str
    sharing: Sharing = Sharing.FORWARD_BACKWARD
    paths_copy: bool = True
    merging: bool = False
    force_copy: bool = False
    real_files: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """What the restore table asks about.

    Args:
        working: directory that the database's files go to; None where only a local one exists.
        sources: directories of the checkpoint's shared files.
        own_shared: this job's shared directory; sources below it mean a failover of the same job.
            None where no job is known.
        real_files: see `Plan`.
    """

    working: str | None
    sources: tuple[str, ...]
    own_shared: str | None
    claim: ClaimMode = ClaimMode.NO_CLAIM
    paths_copy: bool = True
    force_copy: bool = False
    real_files: bool = False

    @property
    def is_failover(self) -> bool:
        return self.own_shared is not None and all(_below(source, self.own_shared) for source in self.sources)


def _below(path: str, directory: str) -> bool:
    return (path.rstrip("/") + "/").startswith(directory.rstrip("/") + "/")


def _same_store(first: str | None, second: str) -> bool:
    return first is not None and locate(first).authority == locate(second).authority


#: How files end that hold the rows of a canonical savepoint.
ROWS = ".parquet"
FORCED = "copying is forced"
SNAPSHOT_TABLE: tuple[tuple[Callable[[Snapshot], bool], str], ...] = (
    (lambda s: s.force_copy, FORCED),
    (lambda s: s.sharing is not Sharing.FORWARD_BACKWARD, "the snapshot shares no files with earlier ones"),
    (lambda s: s.working is None, "the database's files are local to the worker"),
    (lambda s: s.merging, "files are merged, which passes their bytes through a stream"),
    (lambda s: not _same_store(s.working, s.shared), "working directory and checkpoint are in different stores"),
    (
        lambda s: s.working is not None and not _below(s.working, s.shared),
        "the working directory is not below the checkpoint's shared directory",
    ),
)
SNAPSHOT_REUSE = "the working directory is below the checkpoint's shared directory"

RESTORE_TABLE: tuple[tuple[Callable[[Restore], bool], str], ...] = (
    (lambda r: r.force_copy, FORCED),
    (lambda r: r.working is None, "the database's files are local to the worker"),
    (
        lambda r: not all(_same_store(r.working, source) for source in r.sources),
        "checkpoint and working directory are in different stores",
    ),
    (
        lambda r: r.claim is ClaimMode.NO_CLAIM and not r.is_failover,
        "the checkpoint belongs to another job and is not claimed",
    ),
)
RESTORE_REUSE = {
    ClaimMode.CLAIM: "the checkpoint is claimed",
    ClaimMode.LEGACY: "legacy mode leaves the checkpoint in use",
    ClaimMode.NO_CLAIM: "the checkpoint is this job's own",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a table decided for a whole snapshot or restore; `for_file` for one file of it.

    Args:
        links: whether a hard link, which is a file of its own, may stand in for a copy on one disk.
        real_files: whether the database opens files by their names, as RocksDB does, and so cannot
            use a part of a larger one in its place.
    """

    decision: Decision
    copy_method: Method
    links: bool = True
    real_files: bool = False

    def for_file(
        self,
        name: str,
        handle: StateHandle | None = None,
        ownership: Ownership = Ownership.SHAREABLE,
        *,
        link: bool = False,
    ) -> Decision:
        """The decision for one file.

        Args:
            name: the database's name for the file.
            handle: its state handle, on restore.
            ownership: who owns it, on snapshot.
            link: whether source and destination lie on one local disk, where a hard link
                makes a file of its own without moving a byte.
        """
        if isinstance(handle, InMemoryHandle):
            return Decision(Method.BYTES_COPY, "its bytes are in the metadata")
        if name.endswith(ROWS):
            # A link reads nothing, and nothing but its checksum would tell that a row is damaged.
            return Decision(self.copy_method, "its rows are read into the database")
        if ownership is Ownership.PRIVATE or not name.endswith(".sst"):
            return Decision(self.copy_method, "the file may change: each side keeps its own")
        if self.real_files and isinstance(handle, SegmentHandle):
            return Decision(self.copy_method, "it is a part of a larger file")
        if self.decision.method is Method.REUSE:
            return self.decision
        if link and self.links:
            return Decision(Method.REUSE, "a hard link on one disk: the file never changes")
        return Decision(self.copy_method, self.decision.reason)


def plan_snapshot(snapshot: Snapshot) -> Plan:
    """Decide how a snapshot's files get to the checkpoint."""
    copy = Method.PATHS_COPY if snapshot.paths_copy and not snapshot.merging else Method.BYTES_COPY
    links = not (snapshot.force_copy or snapshot.merging or snapshot.sharing is Sharing.NO_SHARING)
    for applies, reason in SNAPSHOT_TABLE:
        if applies(snapshot):
            return Plan(Decision(copy, reason), copy, links, snapshot.real_files)
    return Plan(Decision(Method.REUSE, SNAPSHOT_REUSE), copy, links, snapshot.real_files)


def plan_restore_transfer(restore: Restore) -> Plan:
    """Decide how a checkpoint's files get to the database."""
    copy = Method.PATHS_COPY if restore.paths_copy else Method.BYTES_COPY
    links = not restore.force_copy
    for applies, reason in RESTORE_TABLE:
        if applies(restore):
            return Plan(Decision(copy, reason), copy, links, restore.real_files)
    return Plan(Decision(Method.REUSE, RESTORE_REUSE[restore.claim]), copy, links, restore.real_files)
