"""The demo's result, as text that fits a terminal and a README."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_MIB = 1 << 20
_HEAD = ("method", "wall s", "CPU s", "MiB/s", "ratio", "CPU ratio")


@dataclass(frozen=True)
class Measured:
    """One restore of all subtasks.

    Args:
        seconds: of the slowest subtask.
        cpu_seconds: of all subtasks and the programs that they started; neither Spark's nor the server's.
        bytes: moved, of all subtasks.
    """

    label: str
    seconds: float
    cpu_seconds: float
    bytes: int


def table(measured: Sequence[Measured]) -> str:
    """A Markdown table; the ratios are the first row's wall and CPU time to each row's."""
    rows = [_HEAD, *(_cells(each, measured[0]) for each in measured)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [_line(row, widths) for row in rows]
    rule = "|".join(
        "-" * (width + 2) if column == 0 else "-" * (width + 1) + ":" for column, width in enumerate(widths)
    )
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def _cells(each: Measured, first: Measured) -> tuple[str, ...]:
    speed = each.bytes / _MIB / each.seconds
    ratios = first.seconds / each.seconds, first.cpu_seconds / each.cpu_seconds
    cells = each.label, f"{each.seconds:.2f}", f"{each.cpu_seconds:.2f}", f"{speed:.0f}"
    return *cells, *(f"{ratio:.1f}x" for ratio in ratios)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"
