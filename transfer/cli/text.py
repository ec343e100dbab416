"""Sizes, durations and tables as a terminal shows them."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(size: float) -> str:
    """Bytes in the unit that leaves fewer than four digits: ``17 B``, ``1.50 MiB``, ``256 MiB``."""
    value, unit = float(size), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    if unit == 0:
        return f"{int(size)} B"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {_UNITS[unit]}"


def seconds_text(seconds: float) -> str:
    """``0.12 s``, ``12.3 s``, ``2 min 05 s``."""
    if seconds < 99.95:
        return f"{seconds:.{2 if seconds < 9.995 else 1}f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02} s"


def count_text(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def table_text(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Rows in aligned columns, two spaces apart; columns ``right`` are aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
