"""``statelift copy``: one file, a whole directory or prefix, or a list of requests."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from ...backends.closeables import CloseableRegistry
from ...backends.errors import CopyFailed, UsageError
from ...backends.report import CopyReport
from ...backends.request import CopyRequest
from ..file_systems import FileSystems
from .arguments import add_common, configuration_of
from .bar import progress_bar, total_of
from .interrupts import closing_on_interrupt
from .outcome import complain, error_records, print_json, summary, totals
from .requests import read_requests
from .trees import one_request, tree_requests


def define(parser: argparse.ArgumentParser) -> None:
    parser.usage = "statelift copy SRC DST [options]\n       statelift copy --requests FILE [options]"
    parser.add_argument("source", metavar="SRC", nargs="?", help="URI or path of a file; with -r of a directory")
    parser.add_argument("destination", metavar="DST", nargs="?", help="URI or path; ends with / for a directory")
    parser.add_argument("-r", "--recursive", action="store_true", help="copy everything below SRC to below DST")
    parser.add_argument(
        "--requests",
        metavar="FILE",
        help="JSON lines with source, destination and optional size, offset, length, crc64nvme, etag; - is stdin",
    )
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    with FileSystems(configuration_of(arguments)) as file_systems:
        return _copy(file_systems, _requests(arguments, file_systems), arguments)


def _requests(arguments: argparse.Namespace, file_systems: FileSystems) -> list[CopyRequest]:
    if arguments.requests is not None:
        if arguments.source is not None or arguments.recursive:
            raise UsageError("--requests takes the place of SRC and DST")
        return read_requests(arguments.requests)
    if arguments.destination is None:
        raise UsageError("SRC and DST are needed, or --requests", remedy="see statelift copy --help")
    if arguments.recursive:
        return tree_requests(arguments.source, arguments.destination, file_systems.configuration)
    return [one_request(arguments.source, arguments.destination)]


def _copy(file_systems: FileSystems, requests: Sequence[CopyRequest], arguments: argparse.Namespace) -> int:
    closeables = CloseableRegistry()
    started = time.monotonic()
    quiet = arguments.quiet or arguments.json
    try:
        with (
            closing_on_interrupt(closeables),
            progress_bar("copying", total_of(requests), quiet=quiet) as progress,
        ):
            report = file_systems.copy(requests, closeables, progress=progress, fail_fast=False)
    except CopyFailed as error:
        return _fail(error, requests, time.monotonic() - started, arguments)
    if arguments.json:
        print_json({"ok": True, "requests": len(requests), **totals(report.files, report.seconds), "errors": []})
    elif not arguments.quiet:
        print(summary(report))
    return 0


def _fail(error: CopyFailed, requests: Sequence[CopyRequest], seconds: float, arguments: argparse.Namespace) -> int:
    if arguments.debug:
        raise error
    if arguments.json:
        head = {"ok": False, "requests": len(requests), **totals(error.done, seconds)}
        not_tried = len(requests) - len(error.done) - len(error.errors)
        print_json({**head, "not_tried": not_tried, "errors": error_records(error)})
    elif error.done and not arguments.quiet:
        print(summary(CopyReport(error.done, seconds)))
    complain(error)
    return 1
