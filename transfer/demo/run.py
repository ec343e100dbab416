"""``statelift demo``: the main job on this machine, from a first checkpoint to a restore at another parallelism."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ...backends.errors import BackendUnavailable
from ...backends.options import Configuration
from ..file_systems import FileSystems
from ..spark import CheckpointReport, checkpoint, options_from, restore
from .cluster import local_cluster
from .events import MAX_PARALLELISM, ROW_BYTES, Payments, add, begin, check
from .s3_server import S3Server, serve_s3
from .signals import Signals
from .table import Measured, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_SIZE = 256 << 20
BASE = "s3://state/payments"
MIB = 1 << 20
_ROUNDS = 2
_LEGEND = """
Two subtasks on two single-core executors, the S3 server on the same machine. Wall: of the slower
subtask; CPU: of both, and of the programs that they start, but not of Spark or the server. Each
from reading the checkpoint's metadata to a database that can be opened; the better of two rounds.
Ratios are to the first row."""


@dataclass(frozen=True)
class Method:
    """A way to bring files from the store, as a row of the table."""

    label: str
    options: Mapping[str, object]


def all_methods() -> list[Method]:
    """The ways to compare, the slowest first."""
    return [
        Method("stream, one file at a time", {"transfer.backend": "stream", "stream.parallel": 1}),
        Method("stream, in parallel", {"transfer.backend": "stream"}),
        Method("sdk", {"transfer.backend": "sdk"}),
        Method("s5cmd", {"transfer.backend": "s5cmd", "s3.s5cmd.path": "s5cmd"}),
        Method("wire", {"transfer.backend": "wire"}),
    ]


def run(
    size: int = DEFAULT_SIZE,
    output: Path | None = None,
    *,
    stream: TextIO | None = None,
    methods: Sequence[Method] | None = None,
) -> int:
    """Run the demo. Returns the exit code 0; nothing is left running, nothing is left behind.

    Args:
        size: bytes of keyed state, about.
        output: a file for the results as JSON.
        stream: where a person reads what happens, by default standard output.
        methods: to compare, by default all.

    Raises:
        BackendUnavailable: Java, PySpark or rclone is missing.
        IntegrityError: restored state differs from what the job computed.
    """
    with Signals() as signals, _temporary_directory() as directory, serve_s3(directory / "s3" / "buckets") as server:
        demo = _Demo(size, directory, server, stream or sys.stdout, signals)
        demo.say(f"S3 server (rclone) at {server.endpoint}; starting Spark: 2 executors of 1 core, 1 GiB each")
        with local_cluster(directory / "cluster") as spark:
            signals.arm()
            measured = demo.run(spark, all_methods() if methods is None else methods)
    demo.say("done: nothing is left running\n")
    print(table(measured), file=demo.stream)
    print(_LEGEND, file=demo.stream, flush=True)
    if output is not None:
        output.write_text(json.dumps({"size": size, "rows": [asdict(each) for each in measured]}, indent=1) + "\n")
    return 0


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="statelift-demo-"))
    try:
        yield directory
    finally:
        # Executors that are just ending may still write a last file.
        for _ in range(5):
            with contextlib.suppress(OSError):
                shutil.rmtree(directory)
            if not directory.exists():
                break
            time.sleep(0.2)


@dataclass
class _Demo:
    size: int
    directory: Path
    server: S3Server
    stream: TextIO
    signals: Signals
    started: float = field(default_factory=time.monotonic)

    def say(self, line: str) -> None:
        """Tell a person where we are; a good place to end, too."""
        self.signals.check()
        print(f"{time.monotonic() - self.started:6.1f} s  {line}", file=self.stream, flush=True)

    def run(self, spark: SparkSession, methods: Sequence[Method]) -> list[Measured]:
        accounts = max(1, self.size // ROW_BYTES)
        # Few enough updates that RocksDB does not compact everything, which would leave nothing to reuse.
        first = 3 * accounts
        second, third = first + accounts // 32, first + accounts // 16
        self._checkpoint(spark, 1, Payments(0, first, accounts), parallelism=1)
        self._checkpoint(spark, 2, Payments(first, second, accounts), parallelism=1)
        self._drop_local_state("job")
        with self._expected(spark, Payments(0, second, accounts)) as expected:
            self.say("restoring checkpoint 2 at parallelism 2, by each method, checking every key")
            measured = [found for method in methods if (found := self._measure(spark, method, expected))]
        self._checkpoint(spark, 3, Payments(second, third, accounts), parallelism=2)
        self._drop_local_state("job")
        with self._expected(spark, Payments(0, third, accounts)) as expected:
            self._scale_in(spark, expected)
        return measured

    def _configuration(
        self, spark: SparkSession, local: str, options: Mapping[str, object] | None = None
    ) -> Configuration:
        # Uncompressed, so that what is moved is as large as what was asked for.
        common = {"state.local-dir": local, "state.rocksdb.compression": "none"}
        return options_from(spark, **self.server.options, **common, **(options or {}))

    def _checkpoint(self, spark: SparkSession, number: int, payments: Payments, *, parallelism: int) -> None:
        report: CheckpointReport = checkpoint(
            spark,
            payments.summed(spark),
            begin if number == 1 else add,
            BASE,
            number,
            key="key",
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            previous=number - 1 or None,
            configuration=self._configuration(spark, "job"),
        )
        self.say(
            f"checkpoint {number} at parallelism {parallelism}: {payments.last - payments.first:,} payments, "
            f"{report.bytes / MIB:.1f} MiB of state, {report.bytes_uploaded / MIB:.1f} MiB uploaded"
        )

    def _drop_local_state(self, local: str) -> None:
        """Remove it from below every executor's own directory, which Spark chose."""
        for found in self.directory.glob(f"cluster/local/*/*/*/{local}"):
            shutil.rmtree(found)

    @contextmanager
    def _expected(self, spark: SparkSession, payments: Payments) -> Iterator[DataFrame]:
        """What the state must be, computed from all payments at once and without any state."""
        expected = payments.digests(spark).cache()
        try:
            yield expected
        finally:
            expected.unpersist()

    def _measure(self, spark: SparkSession, method: Method, expected: DataFrame) -> Measured | None:
        """Restore, check, and restore once more: the faster one counts, so that imports and caches do not."""
        configuration = self._configuration(spark, "restored", method.options)
        try:
            FileSystems(configuration).close()
        except BackendUnavailable as error:
            self.say(f"  {method.label}: left out, {error}")
            return None
        found = []
        keys = 0
        for attempt in range(_ROUNDS):
            found.append(self._restore(spark, 2, configuration, 2, method.label))
            if attempt == 0:
                keys = check(spark, f"{BASE}/chk-2", 2, expected, configuration)
            self._drop_local_state("restored")
        best = min(found, key=lambda each: each.seconds)
        self.say(f"  {method.label}: {best.bytes / MIB:.1f} MiB in {best.seconds:.2f} s; all {keys:,} keys are right")
        return best

    def _restore(
        self, spark: SparkSession, number: int, configuration: Configuration, parallelism: int, label: str
    ) -> Measured:
        rows = restore(spark, f"{BASE}/chk-{number}", parallelism, configuration=configuration).collect()
        return Measured(
            label,
            seconds=max(row.seconds for row in rows),
            cpu_seconds=sum(row.cpu_seconds for row in rows),
            bytes=sum(row.bytes - row.bytes_reused for row in rows),
        )

    def _scale_in(self, spark: SparkSession, expected: DataFrame) -> None:
        configuration = self._configuration(spark, "restored")
        found = self._restore(spark, 3, configuration, 1, "")
        keys = check(spark, f"{BASE}/chk-3", 1, expected, configuration)
        self.say(
            f"checkpoint 3 restored at parallelism 1: {found.bytes / MIB:.1f} MiB in {found.seconds:.2f} s; "
            f"all {keys:,} keys are right"
        )
