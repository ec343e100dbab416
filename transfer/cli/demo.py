"""``statelift demo``: the main job, end to end, on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...backends.errors import UsageError
from ...backends.options import parse_size


def define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", default="256m", metavar="SIZE", help="of the state, e.g. 64m or 1g (default: 256m)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the results as JSON too")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")


def run(arguments: argparse.Namespace) -> int:
    try:
        size = parse_size(arguments.size)
    except ValueError as error:
        raise UsageError(f"--size {arguments.size}: {error}") from error
    from ..demo.run import run

    return int(run(size, arguments.output))
