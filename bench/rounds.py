"""Interleaved rounds, and the figures that are honest about them.

A machine drifts: neighbours, heat, page cache. So every contender runs once per round, in an
order that changes, and contenders are compared within a round only; the median of these ratios is
reported, with the smallest and the largest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .sample import Sample


def order(contenders: Sequence[str], round_number: int) -> list[str]:
    """The contenders from another starting point each round, backwards in every second one."""
    start = round_number % len(contenders)
    turned = [*contenders[start:], *contenders[:start]]
    return turned[::-1] if round_number % 2 else turned


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of some runs."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))


def spread(samples: Sequence[Sample], value: Callable[[Sample], float]) -> Spread | None:
    """Of the runs that count; None where there are none."""
    values = [value(sample) for sample in samples if not sample.failed]
    return Spread.of(values) if values else None


def ratios(samples: Sequence[Sample], base: str, contender: str, value: Callable[[Sample], float]) -> Spread | None:
    """``base`` divided by ``contender``, round by round: above 1, the contender takes less."""
    rounds: dict[int, dict[str, float]] = {}
    for sample in samples:
        if not sample.failed:
            rounds.setdefault(sample.round, {})[sample.contender] = value(sample)
    found = [each[base] / each[contender] for each in rounds.values() if base in each and each.get(contender)]
    return Spread.of(found) if found else None
