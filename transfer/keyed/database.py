"""Keyed state: one subtask's rows in RocksDB, by key group and key.

    with KeyedState.open("/disk/state", KeyGroupRange(0, 63), 128) as state:
        state.write((key_group, key, value) for key_group, key, value in rows)
        handle = state.snapshot(CheckpointLocation(base, 7), uploader)

Rows are durable once a snapshot has them and its checkpoint is complete, not before: there is no
write-ahead log.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Generator, Iterable, Iterator
from functools import cached_property
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ...backends.checksums import crc64nvme_of_file
from ...backends.closeables import CloseableRegistry
from ...backends.errors import IntegrityError, UsageError
from ...backends.locked_directories import attempt_directory
from ...backends.options import Configuration
from ..handles import KeyedStateHandle, KeyGroupRange
from .key_groups import encode_key, key_bounds, key_group_of, prefix_of
from .lineage import Lineage
from .manifest import UnknownManifest, read_manifest
from .options import RocksOptions
from .rocksdb import compact_outside, cursor, delete_outside, open_rocksdb, rocksdb_errors, rows, unlogged

if TYPE_CHECKING:
    from rocksdict import Rdict

    from ...backends.report import Progress
    from ..checkpoint.layout import CheckpointLocation
    from ..uploader import StateUploader

_ROWS_AT_ONCE = 128
_BATCH_BYTES = 512 << 10


class KeyedState:
    """An open database. One thread writes at a time; reading from several is safe.

    Attributes:
        directory: of the database.
        lineage: its identity, range and uploaded files.
    """

    def __init__(self, directory: str, database: Rdict, lineage: Lineage, options: RocksOptions) -> None:
        self.directory = directory
        self.lineage = lineage
        self.options = options
        self._database: Rdict | None = database
        self._unlogged = unlogged()
        self._lock = threading.RLock()
        self._readers: weakref.WeakSet[Generator[tuple[int, bytes, bytes]]] = weakref.WeakSet()

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        key_groups: KeyGroupRange | None = None,
        max_parallelism: int | None = None,
        *,
        configuration: Configuration | None = None,
        read_only: bool = False,
    ) -> Self:
        """Open the state in a directory, or begin it in an empty one.

        Args:
            key_groups: the subtask's; may be left out where the directory has state.
            max_parallelism: likewise.
            read_only: needs no lock, and cannot write.

        Raises:
            UsageError: the directory has no state and the range is not given, or has another range.
            DestinationError: it is open already or cannot be written.
            IntegrityError: a file is missing, short or damaged.
        """
        directory = os.path.abspath(directory)
        options = (configuration or Configuration()).of(RocksOptions)
        lineage = Lineage.of(directory, key_groups, max_parallelism)
        # With CURRENT lost, RocksDB would begin an empty database beside the files of the old one.
        create = not any(name.startswith(("CURRENT", "MANIFEST-")) for name in os.listdir(directory))
        return cls(directory, open_rocksdb(directory, options, create=create, read_only=read_only), lineage, options)

    @property
    def key_groups(self) -> KeyGroupRange:
        return self.lineage.key_groups

    @property
    def max_parallelism(self) -> int:
        return self.lineage.max_parallelism

    @property
    def backend_id(self) -> str:
        """Identity of this lineage of databases; kept by a restore at the same parallelism."""
        return self.lineage.backend_id

    @property
    def closed(self) -> bool:
        return self._database is None

    def put(self, key: str | bytes | int, value: bytes, *, key_group: int | None = None) -> None:
        """Set a key's value.

        Args:
            key_group: known already; None computes it as Spark does.

        Raises:
            UsageError: the key group belongs to another subtask.
        """
        with rocksdb_errors(self.directory):
            self._open[self._address(key, key_group)] = value

    def get(self, key: str | bytes | int, *, key_group: int | None = None) -> bytes | None:
        """A key's value, or None."""
        with rocksdb_errors(self.directory):
            value: bytes | None = self._open.get(self._address(key, key_group))
        return value

    def delete(self, key: str | bytes | int, *, key_group: int | None = None) -> None:
        """Remove a key, if it is there."""
        with rocksdb_errors(self.directory):
            self._open.delete(self._address(key, key_group))

    def write(self, rows: Iterable[tuple[int, bytes, bytes | None]]) -> int:
        """Set many rows of (key group, key, value); the value None removes the key. Returns how many.

        Rows go in in batches: when one is refused, some of those before it are in.

        Raises:
            UsageError: a key group belongs to another subtask.
        """
        from rocksdict import WriteBatch

        prefixes, source, count = self._prefixes, iter(rows), 0
        batch = WriteBatch(raw_mode=True)
        while chunk := tuple(islice(source, _ROWS_AT_ONCE)):
            put, delete = batch.put, batch.delete
            try:
                for key_group, key, value in chunk:
                    if value is None:
                        delete(prefixes[key_group] + key)
                    else:
                        put(prefixes[key_group] + key, value)
            except KeyError as error:
                raise self._foreign(error.args[0]) from None
            count += len(chunk)
            if batch.size_in_bytes() >= _BATCH_BYTES:
                self._write(batch)
                batch = WriteBatch(raw_mode=True)
        self._write(batch)
        return count

    def _write(self, batch: object) -> None:
        with rocksdb_errors(self.directory):
            self._open.write(batch, self._unlogged)

    def items(self, key_groups: KeyGroupRange | None = None) -> Iterator[tuple[int, bytes, bytes]]:
        """(key group, key, value) in the order of key group and key.

        Raises:
            IntegrityError: a block is damaged; the rows before it were right.
        """
        reader = self._items(self._own(key_groups))
        self._readers.add(reader)
        return reader

    def _items(self, key_groups: KeyGroupRange) -> Generator[tuple[int, bytes, bytes]]:
        if not len(key_groups):
            return
        for key, value in rows(self._open, self.directory, *key_bounds(key_groups)):
            yield key[0] << 8 | key[1], key[2:], value

    def count(self, key_groups: KeyGroupRange | None = None) -> int:
        """Number of keys, by reading all of them."""
        own = self._own(key_groups)
        if not len(own):
            return 0
        return _count(self._open, self.directory, *key_bounds(own))

    def verify(self) -> int:
        """Read everything: CRC64NVME of files that a checkpoint has, checksum of every block. Returns the rows.

        Raises:
            IntegrityError: something is damaged.
        """
        with self.frozen() as directory, contextlib.suppress(UnknownManifest):
            for file in read_manifest(directory).files:
                handle = self.lineage.completed.get(file.unique_id or "")
                expected = getattr(handle, "crc64nvme", None)
                if expected is not None and crc64nvme_of_file(os.path.join(directory, file.name)) != expected:
                    raise IntegrityError(
                        f"{file.name} in {self.directory} is damaged: its CRC64NVME differs",
                        remedy="restore the state again",
                    )
        return _count(self._open, self.directory)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[str]:
        """A directory with the database as it is now, by hard links, removed when the block ends."""
        from rocksdict import Checkpoint

        with attempt_directory(self.directory) as attempt:
            directory = os.path.join(attempt, "frozen")
            with rocksdb_errors(self.directory):
                Checkpoint(self._open).create_checkpoint(directory)
            yield directory

    def flush(self) -> None:
        """Write rows that are in memory to SST files."""
        with rocksdb_errors(self.directory):
            self._open.flush()

    def compact(self) -> None:
        """Sort everything into the lowest level: each key once, in as few files as there can be."""
        with rocksdb_errors(self.directory):
            self._open.compact_range(None, None)

    def trim(self) -> None:
        """Rewrite the files that reach outside the subtask's key groups, which a rescale left as they were."""
        bounds = (*key_bounds(self.key_groups), prefix_of(self.max_parallelism))
        with rocksdb_errors(self.directory):
            delete_outside(self._open, *bounds)
            compact_outside(self._open, *bounds)

    def snapshot(
        self,
        location: CheckpointLocation,
        uploader: StateUploader,
        closeables: CloseableRegistry | None = None,
        *,
        full: bool = False,
        progress: Progress | None = None,
    ) -> KeyedStateHandle:
        """See `statelift.transfer.keyed.snapshot.snapshot`."""
        from .snapshot import snapshot

        return snapshot(self, location, uploader, closeables or CloseableRegistry(), full=full, progress=progress)

    def completed(self, checkpoint_id: int) -> None:
        """The checkpoint exists: later snapshots reference its files."""
        self.lineage.complete(checkpoint_id)
        self.lineage.save(self.directory)

    def aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never exist: its files are forgotten."""
        self.lineage.abort(checkpoint_id)
        self.lineage.save(self.directory)

    def subsumed(self, checkpoint_id: int) -> None:
        """The checkpoint was deleted. Nothing to do: only files of the newest completed one are referenced."""

    def close(self) -> None:
        """Flush and release the directory, also while readers are unfinished. Idempotent."""
        with self._lock:
            database, self._database = self._database, None
        if database is None:
            return
        for reader in list(self._readers):
            # A reader that is running in another thread ends with the database, not before it.
            with contextlib.suppress(ValueError):
                reader.close()
        with rocksdb_errors(self.directory):
            database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _open(self) -> Rdict:
        if self._database is None:
            raise UsageError(f"the state in {self.directory} is closed")
        return self._database

    @cached_property
    def _prefixes(self) -> dict[int, bytes]:
        return {key_group: prefix_of(key_group) for key_group in self.key_groups}

    def _address(self, key: str | bytes | int, key_group: int | None) -> bytes:
        if key_group is None:
            key_group = key_group_of(key, self.max_parallelism)
        prefix = self._prefixes.get(key_group)
        if prefix is None:
            raise self._foreign(key_group)
        return prefix + encode_key(key)

    def _own(self, key_groups: KeyGroupRange | None) -> KeyGroupRange:
        return self.key_groups if key_groups is None else self.key_groups.intersection(key_groups)

    def _foreign(self, key_group: int) -> UsageError:
        own = self.key_groups
        return UsageError(
            f"key group {key_group} is not among this subtask's, {own.first} to {own.last}",
            remedy="route rows by key_group_expression or key_group_of",
        )


def _count(database: Rdict, directory: str, low: bytes = b"", high: bytes | None = None) -> int:
    count = 0
    with rocksdb_errors(directory):
        position = cursor(database, low, high)
        while position.valid():
            count += 1
            position.next()
        position.status()
    return count
