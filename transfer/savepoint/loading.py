"""Restoring a canonical savepoint into RocksDB, at any parallelism."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...backends.report import CopyReport
from ..handles import StateFile
from ..keyed.parts import Part
from ..keyed.restore import RestoreReport, StateRestore
from ..keyed.rocksdb import ingest_rows, open_rocksdb, rocksdb_errors
from ..linking import decisions_of
from .rows_file import read_rows

if TYPE_CHECKING:
    from rocksdict import Rdict


class RowsRestore(StateRestore):
    """Ingests the rows of Parquet files as SST files; a Parquet file is removed once it is read."""

    def __call__(self) -> RestoreReport:
        wanted = [(part, file) for part in self.parts for file in part.plan.needed]
        with self._phase("transfer"):
            self._download(wanted)
        with self._phase("open"):
            database = open_rocksdb(self.workspace, self.options, create=True, automatic=False)
        try:
            with self._phase("clip"), rocksdb_errors(self.workspace):
                for part, file in sorted(wanted, key=lambda each: each[1].smallest or b""):
                    self._ingest(database, part, file)
        finally:
            with rocksdb_errors(self.workspace):
                database.close()
        self._lineage().save(self.workspace)
        copy = CopyReport.joined(self.copies, seconds=self.seconds["transfer"])
        plan = self.plan
        return RestoreReport(
            plan.method,
            plan.key_groups,
            len(copy.files),
            copy.bytes,
            plan.bytes_saved,
            dict(self.seconds),
            copy,
            transfers=decisions_of(self.strategy, copy.files),
        )

    def _ingest(self, database: Rdict, part: Part, file: StateFile) -> None:
        path = os.path.join(part.directory, file.name)
        staged = os.path.join(part.directory, "rows.sst")
        rows = read_rows(path, part.plan.wanted, self.closeables)
        ingest_rows(database, rows, staged, self.options, self.closeables)
        os.unlink(path)
