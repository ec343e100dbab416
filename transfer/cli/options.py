"""``statelift options``: every option, its default and its meaning."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap

from ...backends.options import Declaration, declared, environment_name
from ..file_systems import load_declarations
from .arguments import add_output
from .outcome import print_json

_NARROWEST = 40  # columns of help that still read well


def define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    load_declarations()
    if arguments.json:
        print_json({"ok": True, "options": [_record(each) for each in declared()]})
    elif arguments.markdown:
        print(markdown())
    else:
        print(_table(declared()))
    return 0


def markdown() -> str:
    """The table of the README."""
    load_declarations()
    rows = ["| key | default | |", "| --- | --- | --- |"]
    return "\n".join(
        [*rows, *(f"| `{each.key}` | {_plain(each.shown)} | {_plain(each.help)} |" for each in declared())]
    )


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"[|<*\\]", r"\\\g<0>", text)


def _table(options: list[Declaration]) -> str:
    """Three columns, a line each in a pipe; stacked on a terminal that is too narrow for that."""
    keys = max(len(each.key) for each in options)
    defaults = max(len(each.shown) for each in options)
    indent = keys + defaults + 4
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1 << 16
    if width - indent >= _NARROWEST:
        return "\n".join(_row(f"{each.key:{keys}}  {each.shown:{defaults}}  ", each.help, width) for each in options)
    return "\n".join(f"{each.key} = {each.shown}\n{_row('    ', each.help, width)}" for each in options)


def _row(head: str, help: str, width: int) -> str:
    return head + f"\n{' ' * len(head)}".join(textwrap.wrap(help, max(_NARROWEST, width - len(head))))


def _record(option: Declaration) -> dict[str, object]:
    return {
        "key": option.key,
        "default": option.shown,
        "help": option.help,
        "aliases": list(option.aliases),
        "environment": [environment_name(option.key), *option.environment],
        "spark": [f"spark.statelift.{option.key}", *(f"spark.hadoop.{key}" for key in option.hadoop)],
        "secret": option.secret,
    }
