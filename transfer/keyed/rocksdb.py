"""RocksDB by rocksdict: opening, reading with errors noticed, clipping.

The scars of rocksdict that users must not meet are dealt with here: an OPTIONS file in the
directory wins over explicit options unless they are given per column family; the iterators of
``items()`` and ``keys()`` end silently at a damaged block; ``set_iterate_lower_bound`` sets the
upper bound; a live iterator keeps a closed database locked.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...backends.errors import BackendError, DestinationError, IntegrityError, NoSpace, TransferError
from .options import RocksOptions

if TYPE_CHECKING:
    from rocksdict import Options, Rdict, RdictIter, WriteOptions

    from ...backends.closeables import CloseableRegistry

_BLOCK_SIZE = 16 << 10
_BLOOM_BITS = 10
_ROWS_BETWEEN_CHECKS = 4096
_FULL_DISK = ("No space left on device", "Disk quota exceeded")
_LOCKED = ("While lock file", "lock hold by current process")
_UNWRITABLE = ("Permission denied", "Read-only file system", "Is a directory", "Not a directory")


def native_options(options: RocksOptions, *, create: bool = False, automatic: bool = True) -> Options:
    """RocksDB's own options; ``automatic`` lets it compact when it likes."""
    import rocksdict

    native = rocksdict.Options(raw_mode=True)
    native.create_if_missing(create)
    native.set_write_buffer_size(options.write_buffer_size)
    native.set_max_write_buffer_number(2)
    native.set_target_file_size_base(options.target_file_size)
    native.set_max_bytes_for_level_base(max(4 * options.write_buffer_size, options.target_file_size))
    native.set_level_compaction_dynamic_level_bytes(True)
    native.set_compression_type(getattr(rocksdict.DBCompressionType, options.compression)())
    native.set_block_based_table_factory(_table_options(options))
    native.set_disable_auto_compactions(not automatic)
    native.set_max_background_jobs(2)
    native.set_max_open_files(_open_files())
    native.set_keep_log_file_num(2)
    native.set_stats_dump_period_sec(0)
    native.set_is_fd_close_on_exec(True)
    return native


def _open_files() -> int:
    """A quarter of the descriptors that this process may have: one task of an executor must not use up all."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if limit == resource.RLIM_INFINITY else max(64, limit // 4)


def _table_options(options: RocksOptions) -> object:
    import rocksdict

    table = rocksdict.BlockBasedOptions()
    table.set_block_size(_BLOCK_SIZE)
    table.set_bloom_filter(_BLOOM_BITS, False)
    table.set_block_cache(rocksdict.Cache(options.block_cache_size))
    return table


def open_rocksdb(
    directory: str,
    options: RocksOptions,
    *,
    create: bool = False,
    read_only: bool = False,
    automatic: bool = True,
) -> Rdict:
    """Open a database, whose rows then bypass the write-ahead log.

    Raises:
        DestinationError: it is open already, here or in another process, or cannot be written.
        IntegrityError: a file is missing, short or damaged.
    """
    import rocksdict

    native = native_options(options, create=create, automatic=automatic)
    access = rocksdict.AccessType.read_only(False) if read_only else rocksdict.AccessType.read_write()
    with rocksdb_errors(directory):
        if not create and not os.path.exists(os.path.join(directory, "CURRENT")):
            raise IntegrityError(f"{directory} holds no database: CURRENT is missing")
        database = rocksdict.Rdict(directory, native, column_families={"default": native}, access_type=access)
    if not read_only:
        database.set_write_options(unlogged())
    return database


def unlogged() -> WriteOptions:
    """Write options without a write-ahead log: a snapshot is what makes rows durable."""
    import rocksdict

    options = rocksdict.WriteOptions()
    options.disable_wal = True  # an attribute, whatever the package's stub says
    return options


@contextmanager
def rocksdb_errors(directory: str) -> Iterator[None]:
    """Translate rocksdict's plain ``Exception`` into the error of the tree that its text means."""
    try:
        yield
    except TransferError:
        raise
    except Exception as error:
        if type(error) is not Exception and type(error).__module__ != "rocksdict":
            raise
        raise _translated(str(error), directory) from error


def _translated(text: str, directory: str) -> TransferError:
    first_line = text.strip().splitlines()[0] if text.strip() else "no reason given"
    if any(each in text for each in _LOCKED):
        where = "in this process" if "current process" in text else "in another process"
        return DestinationError(
            f"{directory} is open already {where}", remedy="close it there, or restore into a directory of its own"
        )
    if any(each in text for each in _FULL_DISK):
        return NoSpace(f"no space for {directory}: {first_line}", remedy="free space or choose another disk")
    if text.startswith("Corruption"):
        return IntegrityError(f"{directory} is damaged: {first_line}", remedy="restore it from a checkpoint again")
    if any(each in text for each in _UNWRITABLE):
        return DestinationError(f"cannot write {directory}: {first_line}")
    return BackendError(f"RocksDB failed in {directory}: {first_line}")


def cursor(database: Rdict, low: bytes = b"", high: bytes | None = None) -> RdictIter:
    """An iterator at the first key of ``[low, high)``. Ask its ``status()`` when it is no longer valid."""
    import rocksdict

    options = rocksdict.ReadOptions()
    if high is not None:
        options.set_iterate_upper_bound(high)
    found = database.iter(options)
    # Never set_iterate_lower_bound: rocksdict 0.3.29 sets the upper bound by it.
    found.seek(low)
    return found


def rows(database: Rdict, directory: str, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of ``[low, high)`` in order.

    Raises:
        IntegrityError: a block is damaged; what came before it was right.
    """
    with rocksdb_errors(directory):
        position = cursor(database, low, high)
        while position.valid():
            yield position.key(), position.value()
            position.next()
        position.status()


def delete_outside(database: Rdict, low: bytes, high: bytes, end: bytes) -> None:
    """Delete every key below ``low``, and from ``high`` to ``end``."""
    for first, behind in dead_ranges(low, high, end):
        database.delete_range(first, behind)
        # A file per range: one file with both would span, and so seem to concern, all that lies between.
        database.flush()


def compact_outside(database: Rdict, low: bytes, high: bytes, end: bytes) -> None:
    """Rewrite the files that reach outside ``[low, high)``, so that deleted rows and their tombstones are gone."""
    import rocksdict

    options = rocksdict.CompactOptions()
    options.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force_optimized())
    for first, behind in dead_ranges(low, high, end):
        database.compact_range(first, behind, options)


def dead_ranges(low: bytes, high: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    start = bytes(len(low))
    return [(first, behind) for first, behind in ((start, low), (high, end)) if first < behind]


def ingest_rows(
    database: Rdict,
    source: Iterator[tuple[bytes, bytes]],
    staged: str,
    options: RocksOptions,
    closeables: CloseableRegistry,
) -> None:
    """Write sorted rows to SST files of the usual size at ``staged`` and take these into the database."""
    import rocksdict

    ingestion = rocksdict.IngestExternalFileOptions()
    ingestion.set_move_files(True)
    writer, limit = None, options.target_file_size
    for count, (key, value) in enumerate(source, 1):
        if writer is None:
            writer = rocksdict.SstFileWriter(native_options(options))
            writer.open(staged)
        writer[key] = value
        if count % _ROWS_BETWEEN_CHECKS == 0:
            closeables.check()
            if writer.file_size() >= limit:
                writer.finish()
                database.ingest_external_file([staged], ingestion)
                writer = None
    if writer is not None:
        writer.finish()
        database.ingest_external_file([staged], ingestion)
