"""What the user typed: the commands, the arguments that they share, and the options they add up to."""

from __future__ import annotations

import argparse
import difflib
import importlib
from collections.abc import Sequence
from typing import Any, NoReturn

from ...backends.errors import UsageError
from ...backends.options import Configuration
from ..file_systems import backend_names

#: A command's module defines ``define(parser)`` and ``run(arguments)``; it is imported when typed.
COMMANDS = {
    "copy": "copy files between S3, local disks and other stores",
    "restore": "bring one subtask's state out of a checkpoint",
    "checkpoint": "list, inspect, verify, copy and delete checkpoints, and find orphans",
    "savepoint": "make a copy of a checkpoint that can be moved and is its user's",
    "inspect": "show what a checkpoint consists of, as checkpoint inspect",
    "options": "list every option with its default",
    "demo": "run the whole main job on this machine",
    "bench": "report on benchmarks that were run",
}


EXIT_CODES = (
    "Exit codes: 0 done; 1 a transfer or a checkpoint failed, or problems were found; 2 wrong usage or options; "
    "130 and 143 interrupted by Ctrl-C and SIGTERM; 141 the reader of the output went away."
)


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of printing the usage and exiting."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse here what is not known: the command's own parser knows what may have been meant."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown)
        return parsed, unknown

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        flag = next((word.partition("=")[0] for word in unknown if word.startswith("--")), None)
        known = [each for each in self._option_string_actions if each.startswith("--")]
        nearest = difflib.get_close_matches(flag, known, n=1) if flag else []
        if nearest:
            raise UsageError(f"there is no option {flag}", remedy=f"did you mean {nearest[0]}? See {self.prog} --help")
        self.error(f"unrecognized arguments: {' '.join(unknown)}")

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy=f"see {self.prog} --help")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"statelift {version('statelift')}")
        parser.exit()


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Arguments with ``run``, the function of the command.

    Raises:
        UsageError: they make no command.
    """
    parser = Parser(
        prog="statelift",
        description="Moves state between object stores and the disks of executors.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    typed = next((word for word in words if not word.startswith("-")), None)
    if typed is not None and typed not in COMMANDS:
        nearest = difflib.get_close_matches(typed, COMMANDS, n=1, cutoff=0.0)[0]
        raise UsageError(f"there is no command {typed}", remedy=f"did you mean {nearest}? See statelift --help")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name == typed:
            module = importlib.import_module(f".{name}", __package__)
            module.define(command)
            command.set_defaults(run=module.run)
    return parser.parse_args(words)


def add_common(parser: argparse.ArgumentParser, *, copies: bool = True) -> None:
    """Arguments of every command that reads a store; with ``copies``, also of those that copy."""
    parser.add_argument(
        "-c",
        dest="options",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set an option; may be repeated (statelift options lists them)",
    )
    if copies:
        parser.add_argument("--backend", metavar="NAME", help=f"copy with this backend: {', '.join(backend_names())}")
        parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Arguments of every command."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")


def configuration_of(arguments: argparse.Namespace) -> Configuration:
    """Options of ``-c`` and ``--backend``, then the environment's.

    Raises:
        OptionError: an unknown key or a wrong value.
        UsageError: a ``-c`` without ``=``; it is not shown, for it may be a secret.
    """
    given: dict[str, str] = {}
    for each in arguments.options:
        key, equals, value = each.partition("=")
        if not equals or not key.strip():
            raise UsageError("-c needs KEY=VALUE")
        given[key.strip()] = value
    if getattr(arguments, "backend", None):
        given["transfer.backend"] = arguments.backend
    return Configuration(given)
