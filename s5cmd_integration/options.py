"""Options of the s5cmd backend."""

from __future__ import annotations

from dataclasses import dataclass

from ..backends.options import OptionGroup, option, parse_size
from ..backends.transfer_options import parse_whole
from .arguments import Arguments, parse_arguments


def _percent(text: str) -> int:
    value = parse_whole(text.removesuffix("%"))
    if value < 1:
        raise ValueError("must be at least 1")
    return value


def _positive(text: str) -> int:
    value = parse_whole(text)
    if value < 1:
        raise ValueError("must be at least 1")
    return value


def _positive_size(text: str) -> int:
    value = parse_size(text)
    if value < 1:
        raise ValueError("must be at least 1 byte")
    return value


@dataclass(frozen=True, kw_only=True)
class S5cmdOptions(OptionGroup):
    """Options ``s3.s5cmd.*``."""

    path: str | None = option(
        "s3.s5cmd.path",
        None,
        parse=str,
        shown="none: off",
        help="The s5cmd program: a path, or a name to look up. Setting it makes auto choose s5cmd.",
    )
    args: Arguments = option(
        "s3.s5cmd.args",
        Arguments(("-r", "0")),
        parse=parse_arguments,
        shown="-r 0",
        help="Global flags for s5cmd, split like a shell would, e.g. --no-sign-request or --numworkers 8.",
    )
    cpulimit: int | None = option(
        "s3.s5cmd.cpulimit",
        None,
        parse=_percent,
        help="Percent of one CPU that an s5cmd process may use, as cpulimit --limit.",
    )
    batch_max_size: int = option(
        "s3.s5cmd.batch.max-size",
        1 << 30,
        parse=_positive_size,
        shown="1024mb",
        help="Bytes that one s5cmd process copies; one larger file still makes a batch.",
    )
    batch_max_files: int = option(
        "s3.s5cmd.batch.max-files", 100, parse=_positive, help="Files that one s5cmd process copies."
    )
    memory_limit: int = option(
        "s3.s5cmd.memory-limit",
        128 << 20,
        parse=_positive_size,
        shown="128mb",
        help="Heap above which s5cmd collects garbage eagerly (GOMEMLIMIT).",
    )
