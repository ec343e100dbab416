"""``statelift restore``: one subtask's state, at any parallelism, into a directory."""

from __future__ import annotations

import argparse
from typing import Any

from ...backends.closeables import CloseableRegistry
from ..checkpoint.store import CheckpointStore
from ..downloader import StateDownloader
from ..file_systems import FileSystems
from ..handles import key_groups_of
from .arguments import add_common, configuration_of
from .bar import progress_bar
from .interrupts import closing_on_interrupt
from .outcome import print_json, summary, totals
from .text import size_text


def define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="<base>/chk-<number> or a savepoint's directory, a URI or a path"
    )
    parser.add_argument("--subtask", type=int, required=True, metavar="I", help="which subtask, from 0")
    parser.add_argument("--parallelism", type=int, required=True, metavar="N", help="of how many")
    parser.add_argument("--into", required=True, metavar="DIR", help="directory to make; it must not hold anything")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    from ..keyed.restore import plan_restore, restore

    configuration = configuration_of(arguments)
    closeables = CloseableRegistry()
    with CheckpointStore(configuration) as store:
        location, metadata = store.read(arguments.checkpoint)
    key_groups = key_groups_of(arguments.subtask, arguments.parallelism, metadata.max_parallelism)
    plan = plan_restore(metadata.states, key_groups)
    with (
        FileSystems(configuration) as file_systems,
        closing_on_interrupt(closeables),
        progress_bar("restoring", plan.bytes, quiet=arguments.quiet or arguments.json) as progress,
    ):
        directory, report = restore(
            plan, location, arguments.into, StateDownloader(file_systems), closeables, progress=progress
        )
    if arguments.json:
        print_json(_document(arguments, str(location), directory, report))
    elif not arguments.quiet:
        print(summary(report.copy))
        print(f"key groups {key_groups.first} to {key_groups.last} in {directory}: {_how(report)}")
    return 0


def _how(report: Any) -> str:
    saved = f", {size_text(report.bytes_saved)} not needed" if report.bytes_saved else ""
    return f"{report.method}{saved}, {report.seconds_outside_transfer:.2f} s outside the transfer"


def _document(arguments: argparse.Namespace, checkpoint: str, directory: str, report: Any) -> dict[str, Any]:
    return {
        "ok": True,
        "checkpoint": checkpoint,
        "subtask": arguments.subtask,
        "parallelism": arguments.parallelism,
        "key_groups": [report.key_groups.first, report.key_groups.last],
        "directory": directory,
        "method": report.method,
        **totals(report.copy.files, report.copy.seconds),
        "bytes_saved": report.bytes_saved,
        "phases": dict(report.seconds),
        "errors": [],
    }
