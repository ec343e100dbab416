"""The whole benchmark: ``make bench``, or ``python -m statelift.bench --only copy,recovery``."""

from __future__ import annotations

import argparse
import importlib
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from . import machine
from .sample import LINES, QUICK_LINES, Recorder, Skipped
from .servers import Servers
from .settings import Settings

#: Parts in the order that they run; each is a module with ``measure(settings, recorder, servers)``.
PARTS = {
    "recovery": "the state of a job comes back: 1 to 1, 1 to 2, 2 to 1 subtasks",
    "copying": "files to and from S3, beside the peers",
    "spark": "recovery through Spark on two executors, and Spark's own state store",
    "savepoint": "a savepoint on one endpoint: copied by the store, through the client, and as Parquet",
    "reuse": "files of state that are on this disk already: linked, beside copied",
    "growth": "memory and CPU against files, bytes and connections",
    "neighbour": "what a limited restore leaves to a busy neighbour on its CPU",
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    chosen = arguments.only.split(",") if arguments.only else []
    unknown = set(chosen) - set(PARTS)
    if unknown:
        _parser().error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    output = arguments.output or (QUICK_LINES if arguments.quick else LINES)
    scratch = Path(tempfile.mkdtemp(prefix="statelift-bench-", dir=arguments.directory))
    try:
        settings = _settings(arguments, scratch)
        _run(chosen or settings.parts, settings, output)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if not arguments.no_report:
        from .report import main as write_report

        write_report([str(output)])
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m statelift.bench", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", action="store_true", help="the main scenarios, a quarter of the bytes: under 3 minutes"
    )
    size.add_argument(
        "--full", action="store_true", help="every scenario, up to 100,000 files and 8 GiB: about 25 minutes"
    )
    parser.add_argument("--only", metavar="PART,...", help=f"parts to run, of: {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, help="counted rounds of every scenario")
    parser.add_argument("--directory", type=Path, help="disk to write to; by default the temporary directory's")
    parser.add_argument("--output", type=Path, help="results file to add to")
    parser.add_argument("--s3a", action="store_true", help="fetch Hadoop's S3 client from Maven Central, for Spark")
    parser.add_argument("--no-report", action="store_true", help="leave out the tables and plots")
    return parser


def _settings(arguments: argparse.Namespace, scratch: Path) -> Settings:
    import dataclasses

    make = Settings.short if arguments.quick else Settings.long if arguments.full else Settings
    made = make(scratch)
    rounds = arguments.rounds
    made = dataclasses.replace(made, s3a=arguments.s3a)
    return dataclasses.replace(made, rounds=rounds, few_rounds=rounds) if rounds else made


def _run(parts: Sequence[str], settings: Settings, output: Path) -> None:
    about = machine.describe()
    began = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    recorder = Recorder(output, {"run": began, "quick": settings.quick, "machine": about})
    servers = Servers(settings.scratch / "s3", settings.server_cpu)
    for part in parts:
        started = time.monotonic()
        print(f"{part}: {PARTS[part]}", flush=True)
        _run_part(part, settings, recorder, servers)
        print(f"{part}: {time.monotonic() - started:.0f} s", flush=True)


def _run_part(part: str, settings: Settings, recorder: Recorder, servers: Servers) -> None:
    measure: Callable[[Settings, Recorder, Servers], None] = importlib.import_module(f".{part}", __package__).measure
    try:
        measure(settings, recorder, servers)
    except Exception as error:
        # One part that breaks must not cost the figures of the others; it is told in the report.
        recorder.skipped(Skipped(part, part, "all", f"failed: {type(error).__name__}: {error}"))
