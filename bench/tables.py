"""Markdown tables of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .rounds import Spread, ratios, spread
from .sample import Sample

MIB = 1 << 20


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is text, the others numbers."""
    lines = ["| " + " | ".join(head) + " |", "| --- " + "| ---: " * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def number(value: float) -> str:
    """Three significant digits or so."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def with_spread(found: Spread | None) -> str:
    if found is None:
        return "-"
    if found.count == 1:
        return number(found.median)
    return f"{number(found.median)} ({number(found.low)}-{number(found.high)})"


def times(found: Spread | None) -> str:
    return "-" if found is None else f"{number(found.median)}x"


@dataclass(frozen=True)
class Column:
    """One column of a comparison."""

    head: str
    text: Callable[[Sequence[Sample], str], str]


def _of(samples: Sequence[Sample], contender: str) -> list[Sample]:
    return [sample for sample in samples if sample.contender == contender]


def measured(head: str, value: Callable[[Sample], float]) -> Column:
    return Column(head, lambda samples, name: with_spread(spread(_of(samples, name), value)))


def middle(head: str, value: Callable[[Sample], float]) -> Column:
    """The median alone."""

    def text(samples: Sequence[Sample], name: str) -> str:
        found = spread(_of(samples, name), value)
        return "-" if found is None or not found.high else number(found.median)

    return Column(head, text)


def against(base: str, head: str, value: Callable[[Sample], float]) -> Column:
    """How many times less than ``base``, in the median of rounds."""
    return Column(head, lambda samples, name: times(ratios(samples, base, name, value)))


def phase(name: str) -> Column:
    return middle(name, lambda sample: float(sample.phases.get(name) or 0.0))


def ranked(samples: Sequence[Sample], value: Callable[[Sample], float] | None = None) -> list[str]:
    """Contenders by median wall time (or ``value``), those that failed last."""
    names = dict.fromkeys(sample.contender for sample in samples)

    def rank(name: str) -> float:
        found = spread(_of(samples, name), value or wall)
        return found.median if found else float("inf")

    return sorted(names, key=rank)


def comparison(
    samples: Sequence[Sample],
    columns: Sequence[Column],
    first: str = "",
    value: Callable[[Sample], float] | None = None,
) -> str:
    """One row per contender, by ``value``; under it, why a contender's runs do not count."""
    rows = [[_bold(name), *(column.text(samples, name) for column in columns)] for name in ranked(samples, value)]
    text = markdown([first, *(column.head for column in columns)], rows)
    reasons = dict.fromkeys((each.contender, each.failed) for each in samples if each.failed)
    return text + "".join(f"\n\n{name} failed: {_one_line(reason)}" for name, reason in reasons)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())[:160]


def _bold(name: str) -> str:
    return f"**{name}**" if name.startswith("wire") else name


WALL = measured("wall, s", lambda sample: sample.wall)
USER = middle("user CPU, s", lambda sample: sample.user)
SYSTEM = middle("system CPU, s", lambda sample: sample.system)
PEAK = middle("peak memory, MiB", lambda sample: sample.peak / MIB)
RECEIVED = middle("received, MiB", lambda sample: sample.received / MIB)
SENT = middle("sent, MiB", lambda sample: sample.sent / MIB)


def wall(sample: Sample) -> float:
    return sample.wall


def cpu(sample: Sample) -> float:
    return sample.cpu


def inner(sample: Sample) -> float:
    """Seconds by the contender's own clock, without its start-up."""
    return sample.seconds or 0.0


def inner_cpu(sample: Sample) -> float:
    """CPU seconds by the contender's own account, without its start-up; of the whole process where it has none."""
    return float(sample.phases.get("cpu") or sample.cpu)


def microseconds(sample: Sample) -> float:
    """Of one file, where many were restored."""
    return float(sample.phases.get("microseconds") or 0.0)


def system_calls(traced: Sequence[Sample]) -> Column:
    """Per GiB, whole process, from the traced runs of the same scenario."""

    def text(_samples: Sequence[Sample], name: str) -> str:
        found = spread(_of(traced, name), lambda sample: sample.system_calls / (sample.bytes / (1 << 30)))
        return f"{found.median:.0f}" if found else "-"

    return Column("system calls per GiB", text)
