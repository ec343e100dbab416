"""The restored versions on one executor's disk: published by rename, shared by its tasks, swept after the dead.

::

    <store>/versions/<lineage>-<first>-<last>-<digest>/   pristine copies, never opened, each with a list of its files
    <store>/files/                                        hard links to downloaded SST files (`file_pool`)
    <store>/work/.statelift-*/                            one directory per attempt, locked while it runs
    <store>/locks/                                        one lock per lineage and range of key groups

No clean-up code is trusted to run: Spark ends a task's Python worker with SIGKILL. What a killed
attempt leaves lies in its own directory, whose lock the kernel has released by then.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...backends.errors import DestinationError
from ...backends.landing import attempt_directory, writing
from ...backends.options import Configuration
from ..handles import KeyGroupRange
from .file_pool import FilePool
from .options import LocalStateOptions

MARK = "statelift-version.json"
_FORMAT = 1
_IMMUTABLE = ".sst"
_WITHOUT_STATE = ("LOCK", "LOG", MARK)


@dataclass(frozen=True)
class Version:
    """What a restored directory is a copy of.

    Args:
        base: the checkpoints' base; versions below one base follow each other.
        checkpoint_id: which of them.
        digest: SHA-256 of the checkpoint's metadata and of how it is restored, so that a checkpoint
            of the same name written by another job is another version, as is one that was claimed.
    """

    base: str
    checkpoint_id: int
    digest: str
    key_groups: KeyGroupRange

    @property
    def lineage(self) -> str:
        return hashlib.sha256(self.base.encode()).hexdigest()[:16]

    @property
    def slot(self) -> str:
        """One version of a slot is restored at a time."""
        return f"{self.lineage}-{self.key_groups.first}-{self.key_groups.last}"

    @property
    def name(self) -> str:
        return f"{self.slot}-{self.digest[:32]}"

    @property
    def identity(self) -> dict[str, Any]:
        """What a mark must say for its directory to be this version."""
        first, last = self.key_groups.first, self.key_groups.last
        return {
            "format": _FORMAT,
            "checkpoint": f"{self.base}/chk-{self.checkpoint_id}",
            "metadata": self.digest,
            "key_groups": [first, last],
        }


#: Fills an empty directory with a version's files; returns facts to remember with it.
Fill = Callable[[Path], dict[str, Any]]


class Present(NamedTuple):
    """A version on this disk: where, what its restore reported, and whether it was this call's restore."""

    directory: Path
    facts: dict[str, Any]
    is_new: bool


def local_root(configuration: Configuration, key: str = "") -> Path:
    """The directory for restored state: ``state.local-dir``, below the executor's own directory where it is relative.

    Args:
        key: always leads to the same one of an executor's several disks.
    """
    directory = configuration.of(LocalStateOptions).directory
    if directory.is_absolute():
        return directory
    disks = [each for each in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if each]
    if disks:
        return Path(disks[int(hashlib.sha256(key.encode()).hexdigest(), 16) % len(disks)]) / directory
    return _own_directory(Path(tempfile.gettempdir()) / f"statelift-{os.getuid()}") / directory


def _own_directory(path: Path) -> Path:
    """Make a directory in a place where anybody may have made it before."""
    with writing(str(path)):
        path.mkdir(mode=0o700, exist_ok=True)
        if path.lstat().st_uid != os.getuid():
            raise DestinationError(f"{path} belongs to another user", remedy="set state.local-dir")
    return path


class LocalStore:
    """Restored versions below one root.

    Args:
        keep: versions kept where key groups overlap, the newest first.

    Raises:
        DestinationError: the root cannot be made or written.
    """

    def __init__(self, root: Path, *, keep: int = 2) -> None:
        self._versions, self._work, self._locks = root / "versions", root / "work", root / "locks"
        self._keep = keep
        with writing(str(root)):
            for directory in (root, self._versions, self._work, self._locks):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.pool = FilePool(root / "files")

    @contextmanager
    def present(self, version: Version, fill: Fill) -> Iterator[Present]:
        """Have a version on this disk, and keep it there within the block.

        Whoever wants the same one meanwhile waits.

        Args:
            fill: restores it, if it is not here.
        """
        with self._locked(version.slot), writing(str(self._versions)):
            mark, is_new = self._mark_of(version), False
            if mark is None:
                mark, is_new = self._restore(version, fill), True
            yield Present(self._versions / version.name, mark["facts"], is_new)

    @contextmanager
    def working_copy(self, version: Version, fill: Fill) -> Iterator[Present]:
        """A writable copy of a version, gone after the block; see `present`."""
        with attempt_directory(self._work) as attempt:
            directory = Path(attempt, "db")
            with self.present(version, fill) as pristine:
                _clone(pristine.directory, directory)
            yield pristine._replace(directory=directory)

    @contextmanager
    def empty(self) -> Iterator[Path]:
        """A new directory for state that starts empty, gone after the block."""
        with attempt_directory(self._work) as attempt:
            yield Path(attempt, "db")

    def _restore(self, version: Version, fill: Fill) -> dict[str, Any]:
        with attempt_directory(self._versions) as attempt:
            directory = Path(attempt, "db")
            with writing(str(directory)):
                directory.mkdir()
            facts = fill(directory)
            mark = {**version.identity, "facts": facts, "files": _listing(directory)}
            with writing(str(directory)):
                (directory / MARK).write_text(json.dumps(mark))
                self._discard(self._versions / version.name)
                os.rename(directory, self._versions / version.name)
        self._trim(version)
        return mark

    def _mark_of(self, version: Version) -> dict[str, Any] | None:
        """The mark of a version that is here and whole."""
        directory = self._versions / version.name
        mark = _read_mark(directory)
        if mark is None or any(mark.get(key) != value for key, value in version.identity.items()):
            return None
        whole = all(_is_unchanged(directory / file["name"], file) for file in mark["files"])
        return mark if whole else None

    def _trim(self, newest: Version) -> None:
        """Discard older versions of the same state beyond those kept. One that is in use is left for later."""
        others = []
        for entry in os.scandir(self._versions):
            if entry.name.startswith(newest.lineage) and entry.name != newest.name:
                mark = _read_mark(Path(entry.path))
                if mark is None or _overlaps(mark, newest.key_groups):
                    others.append((entry.stat().st_mtime_ns, entry.name))
        for _, name in sorted(others, reverse=True)[self._keep - 1 :]:
            slot = name.rpartition("-")[0]
            if slot == newest.slot:
                self._discard(self._versions / name)
                continue
            with contextlib.suppress(BlockingIOError), self._locked(slot, wait=False):
                self._discard(self._versions / name)
        self.pool.trim()

    def _discard(self, directory: Path) -> None:
        """Remove a version, first out of sight: a name in ``versions`` never stands for half of one."""
        if directory.exists():
            with attempt_directory(self._versions) as attempt:
                os.rename(directory, Path(attempt, "discarded"))

    @contextmanager
    def _locked(self, slot: str, *, wait: bool = True) -> Iterator[None]:
        with writing(str(self._locks)):
            fd = os.open(self._locks / slot, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield
        finally:
            os.close(fd)


def _read_mark(directory: Path) -> dict[str, Any] | None:
    try:
        mark = json.loads((directory / MARK).read_bytes())
    except (OSError, ValueError):
        return None
    return mark if isinstance(mark, dict) else None


def _overlaps(mark: dict[str, Any], key_groups: KeyGroupRange) -> bool:
    return len(key_groups.intersection(KeyGroupRange(*mark["key_groups"]))) > 0


def _listing(directory: Path) -> list[dict[str, Any]]:
    files = []
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.is_file(follow_symlinks=False) and not entry.name.startswith(_WITHOUT_STATE):
            found = entry.stat(follow_symlinks=False)
            files.append({"name": entry.name, "size": found.st_size, "modified": found.st_mtime_ns})
    return files


def _is_unchanged(path: Path, file: dict[str, Any]) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return (found.st_size, found.st_mtime_ns) == (file["size"], file["modified"])


def _clone(pristine: Path, directory: Path) -> None:
    """Hard links of the SST files, which RocksDB never writes again; copies of the rest, which it does."""
    directory.mkdir()
    for file in _listing(pristine):
        source, target = pristine / file["name"], directory / file["name"]
        if file["name"].endswith(_IMMUTABLE):
            with contextlib.suppress(OSError):
                os.link(source, target)
                continue
        shutil.copyfile(source, target)
