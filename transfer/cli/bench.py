"""``statelift bench report``: from recorded runs to tables and plots."""

from __future__ import annotations

import argparse
import importlib

from ...backends.errors import BackendUnavailable


def define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["report"], help="what to do")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="arguments of the report")


def run(arguments: argparse.Namespace) -> int:
    try:
        # By name: the benchmarks stand above this package and may be left out of an installation.
        report = importlib.import_module("statelift.bench.report")
    except ImportError as error:
        raise BackendUnavailable(
            f"the benchmarks are not installed: {error}", remedy="pip install 'statelift[bench]'"
        ) from error
    return int(report.main(arguments.words) or 0)
