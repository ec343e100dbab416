"""Keyed state as Parquet files, sorted by key group and key: what other programs can read.

The columns are ``key_group`` (int), ``key`` and ``value`` (binary). A key is as the job encoded
it: text as UTF-8, see `statelift.transfer.keyed.key_groups.encode_key`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...backends.closeables import CloseableRegistry
from ...backends.disk import writing
from ...backends.errors import BackendUnavailable, IntegrityError
from ..handles import KeyGroupRange
from ..keyed.key_groups import prefix_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: Summary file that Spark reads the schema from; it takes a lone ``_metadata`` for one as well.
COMMON = "_common_metadata"
PARQUET_SUFFIX = ".parquet"
PART_BYTES = 64 << 20
GROUP_BYTES = 8 << 20
_GROUP_ROWS = 128 << 10
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class RowsFile:
    """One finished file on the local disk; keys begin with the key group, as in RocksDB."""

    path: str
    rows: int
    smallest: bytes
    largest: bytes


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise BackendUnavailable(
            f"canonical savepoints need pyarrow: {error}", remedy="pip install 'statelift[spark]'"
        ) from error
    return pa, pq


def schema() -> pa.Schema:
    pyarrow, _ = _arrow()
    columns = {"key_group": pyarrow.int32(), "key": pyarrow.binary(), "value": pyarrow.binary()}
    return pyarrow.schema([pyarrow.field(name, kind, nullable=False) for name, kind in columns.items()])


def write_schema(path: str) -> None:
    """The summary file: a schema and no rows."""
    _, parquet = _arrow()
    with writing(path):
        parquet.write_metadata(schema(), path)


def write_rows(
    rows: Iterator[tuple[int, bytes, bytes]],
    directory: str,
    closeables: CloseableRegistry,
    *,
    part_bytes: int = PART_BYTES,
    group_bytes: int = GROUP_BYTES,
) -> Iterator[RowsFile]:
    """Write sorted rows to files of about ``part_bytes``. Each is given out when it is whole; then it may be removed.

    Args:
        group_bytes: of a row group, which is what a reader must take at once.
    """
    part = None
    try:
        for keys, values, groups in _grouped(rows, group_bytes):
            closeables.check()
            part = part or _Part(os.path.join(directory, f"part{PARQUET_SUFFIX}"))
            part.write(groups, keys, values)
            if part.bytes >= part_bytes:
                yield part.finish()
                part = None
        if part is not None:
            yield part.finish()
    finally:
        if part is not None:
            part.close()


def _grouped(
    rows: Iterator[tuple[int, bytes, bytes]], most: int
) -> Iterator[tuple[list[bytes], list[bytes], list[int]]]:
    keys: list[bytes] = []
    values: list[bytes] = []
    groups: list[int] = []
    size = 0
    for key_group, key, value in rows:
        groups.append(key_group)
        keys.append(key)
        values.append(value)
        size += len(key) + len(value)
        if size >= most or len(keys) >= _GROUP_ROWS:
            yield keys, values, groups
            keys, values, groups, size = [], [], [], 0
    if keys:
        yield keys, values, groups


class _Part:
    """A file that is being written."""

    def __init__(self, path: str) -> None:
        pyarrow, parquet = _arrow()
        self._path = path
        self._record_batch = pyarrow.record_batch
        self._schema = schema()
        self._first: bytes | None = None
        self._last = b""
        self._rows = 0
        self.bytes = 0
        order = parquet.SortingColumn.from_ordering(self._schema, [("key_group", "ascending"), ("key", "ascending")])
        with writing(path):
            self._writer: pq.ParquetWriter = parquet.ParquetWriter(
                path,
                self._schema,
                compression="snappy",
                use_dictionary=["key_group"],
                write_statistics=["key_group", "key"],
                sorting_columns=order,
            )

    def write(self, groups: list[int], keys: list[bytes], values: list[bytes]) -> None:
        """One row group."""
        batch = self._record_batch([groups, keys, values], schema=self._schema)
        with writing(self._path):
            self._writer.write_batch(batch, row_group_size=len(keys))
        if self._first is None:
            self._first = prefix_of(groups[0]) + keys[0]
        self._last = prefix_of(groups[-1]) + keys[-1]
        self._rows += len(keys)
        self.bytes += batch.nbytes

    def finish(self) -> RowsFile:
        with writing(self._path):
            self._writer.close()
        return RowsFile(self._path, self._rows, self._first or b"", self._last)

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._writer.close()


def read_rows(path: str, key_groups: KeyGroupRange, closeables: CloseableRegistry) -> Iterator[tuple[bytes, bytes]]:
    """Keys, as RocksDB has them, and values of the key groups, in order.

    Row groups that have none of the key groups are skipped by their statistics.

    Raises:
        IntegrityError: it is no such file, or a damaged one.
    """
    pyarrow, parquet = _arrow()
    try:
        with parquet.ParquetFile(path) as file:
            if not file.schema_arrow.equals(schema()):
                raise IntegrityError(f"{path} has other columns than keyed state: {file.schema_arrow.names}")
            wanted = [
                each for each in range(file.num_row_groups) if _overlaps(file.metadata.row_group(each), key_groups)
            ]
            for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=wanted) if wanted else ():
                closeables.check()
                yield from _rows_of(batch, key_groups)
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, IntegrityError):
            raise
        raise IntegrityError(f"{path} is damaged: {error}", remedy="use another savepoint") from error


def _overlaps(row_group: pq.RowGroupMetaData, key_groups: KeyGroupRange) -> bool:
    found = row_group.column(0).statistics
    if found is None or not found.has_min_max:
        return True
    return bool(found.min <= key_groups.last and found.max >= key_groups.first)


def _rows_of(batch: pa.RecordBatch, key_groups: KeyGroupRange) -> Iterator[tuple[bytes, bytes]]:
    groups, keys, values = (column.to_pylist() for column in batch.columns)
    for key_group, key, value in zip(groups, keys, values, strict=True):
        if key_group in key_groups:
            yield prefix_of(key_group) + key, value
