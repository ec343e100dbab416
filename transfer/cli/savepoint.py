"""``statelift savepoint``: a copy of a checkpoint that belongs to its user."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ...backends.closeables import CloseableRegistry
from ..checkpoint.store import CheckpointStore
from ..file_systems import FileSystems
from .arguments import add_common, configuration_of
from .bar import progress_bar
from .interrupts import closing_on_interrupt
from .outcome import print_json, summary, totals

if TYPE_CHECKING:
    from ..savepoint.taking import SavepointReport


def define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="<base>/chk-<number>, or a savepoint's directory")
    parser.add_argument("target", metavar="TARGET", help="directory to make, a URI or a path")
    parser.add_argument(
        "--type",
        choices=["native", "canonical"],
        default="native",
        help="native: the state's files as they are, which is quick; "
        "canonical: its rows as Parquet, for other programs to read (default: native)",
    )
    parser.add_argument(
        "--scratch", metavar="DIR", help="local disk for --type canonical, with room for one subtask's state"
    )
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    from ..savepoint.taking import savepoint

    configuration = configuration_of(arguments)
    closeables = CloseableRegistry()
    with CheckpointStore(configuration) as store, FileSystems(configuration) as file_systems:
        _, metadata = store.read(arguments.checkpoint)
        with (
            closing_on_interrupt(closeables),
            progress_bar("saving", metadata.size, quiet=arguments.quiet or arguments.json) as progress,
        ):
            report = savepoint(
                arguments.checkpoint,
                arguments.target,
                type=arguments.type,
                closeables=closeables,
                progress=progress,
                scratch=arguments.scratch,
                store=store,
                file_systems=file_systems,
            )
    if arguments.json:
        print_json(_document(report))
    elif not arguments.quiet:
        print(summary(report.copy))
        print(f"{report.type} savepoint {report.location} of {arguments.checkpoint}")
    return 0


def _document(report: SavepointReport) -> dict[str, Any]:
    return {
        "ok": True,
        "savepoint": str(report.location),
        "type": report.type.value,
        "checkpoint_id": report.metadata.checkpoint_id,
        "parallelism": report.metadata.parallelism,
        "max_parallelism": report.metadata.max_parallelism,
        **totals(report.copy.files, report.seconds),
        "bytes_moved": report.copy.bytes_moved,
        "errors": [],
    }
