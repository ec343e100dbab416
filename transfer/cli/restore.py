"""``statelift restore``: one subtask's state, at any parallelism, into a directory."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ...backends.closeables import CloseableRegistry
from ..checkpoint.fallback import with_fall_back
from ..checkpoint.store import CheckpointStore
from ..downloader import StateDownloader
from ..file_systems import FileSystems
from ..handles import key_groups_of
from .arguments import add_common, configuration_of
from .bar import progress_bar
from .interrupts import closing_on_interrupt
from .outcome import print_json, summary, totals
from .text import size_text

if TYPE_CHECKING:
    from ..keyed.restore import RestoreReport


def define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="<base>/chk-<number> or a savepoint's directory, a URI or a path"
    )
    parser.add_argument("--subtask", type=int, required=True, metavar="I", help="which subtask, from 0")
    parser.add_argument("--parallelism", type=int, required=True, metavar="N", help="of how many")
    parser.add_argument("--into", required=True, metavar="DIR", help="directory to make; it must not hold anything")
    parser.add_argument(
        "--fall-back", action="store_true", help="where the checkpoint is damaged, restore the one before it"
    )
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    configuration = configuration_of(arguments)
    closeables = CloseableRegistry()
    with (
        CheckpointStore(configuration) as store,
        FileSystems(configuration) as file_systems,
        closing_on_interrupt(closeables),
    ):
        done = with_fall_back(
            store,
            arguments.checkpoint,
            lambda checkpoint: _restore(checkpoint, arguments, store, file_systems, closeables),
            fall_back=arguments.fall_back,
        )
    location, directory, report = done.result
    if arguments.json:
        print_json({**_document(arguments, location, directory, report), "fell_back": done.reason})
    elif not arguments.quiet:
        if done.reason:
            print(f"fell back to {location}: {done.reason}")
        print(summary(report.copy))
        own = report.key_groups
        print(f"key groups {own.first} to {own.last} in {directory}: {_how(report)}")
    return 0


def _restore(
    checkpoint: str,
    arguments: argparse.Namespace,
    store: CheckpointStore,
    file_systems: FileSystems,
    closeables: CloseableRegistry,
) -> tuple[str, str, RestoreReport]:
    from ..keyed.restore import plan_restore, restore

    location, metadata = store.read(checkpoint)
    key_groups = key_groups_of(arguments.subtask, arguments.parallelism, metadata.max_parallelism)
    plan = plan_restore(metadata.states, key_groups)
    with progress_bar("restoring", plan.bytes, quiet=arguments.quiet or arguments.json) as progress:
        directory, report = restore(
            plan, location, arguments.into, StateDownloader(file_systems), closeables, progress=progress
        )
    return str(location), directory, report


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
        "transfers": [
            {
                "method": each.decision.method.value,
                "reason": each.decision.reason,
                "files": each.files,
                "bytes": each.bytes,
            }
            for each in report.transfers
        ],
        "errors": [],
    }
