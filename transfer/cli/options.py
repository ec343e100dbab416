"""``statelift options``: every option, its default and its meaning."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap

from ...backends.options import Declaration, declared, environment_name
from ..file_systems import load_declarations
from .arguments import add_output
from .outcome import print_json


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
    return "\n".join([*rows, *(f"| `{each.key}` | {each.shown} | {each.help} |" for each in declared())])


def _table(options: list[Declaration]) -> str:
    keys = max(len(each.key) for each in options)
    defaults = max(len(each.shown) for each in options)
    indent = " " * (keys + defaults + 4)
    width = shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 0
    lines = []
    for each in options:
        head = f"{each.key:{keys}}  {each.shown:{defaults}}  "
        room = width - len(indent)
        parts = textwrap.wrap(each.help, room) if room >= 20 else [each.help]
        lines.append(head + f"\n{indent}".join(parts))
    return "\n".join(lines)


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
