"""The goals of DESIGN.md ("Numbers to reach"), each with what was measured: met, or by how much not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from . import tables
from .rounds import Spread, ratios, spread
from .sample import Results, Sample
from .tables import MIB, cpu, inner, markdown, number, wall


@dataclass(frozen=True)
class Goal:
    """One goal: what was measured, in the unit of the goal, and whether more or less is better."""

    work: str
    wanted: float
    unit: str
    at_least: bool
    measured: Callable[[Results], Spread | None]

    def row(self, results: Results) -> list[str]:
        sign = "≥" if self.at_least else "≤"
        found = self.measured(results)
        wanted = f"{sign} {number(self.wanted)}{self.unit}"
        if found is None:
            return [self.work, wanted, "-", "not measured"]
        met = found.median >= self.wanted if self.at_least else found.median <= self.wanted
        apart = found.median / self.wanted if self.at_least else self.wanted / (found.median or 1)
        verdict = "met" if met else f"not met: {100 * (1 - apart):.0f} % short"
        return [self.work, wanted, f"{number(found.median)}{self.unit}", verdict]


def _scenario(results: Results, part: str, *words: str) -> list[Sample]:
    """The samples of the first scenario whose name has all these words, in the plain form."""
    names = [name for name in results.scenarios(part) if all(word in f"{name};" for word in words)]
    plain = [name for name in names if "MiB of memory" not in name and "first byte" not in name]
    return [sample for sample in results.of(part) if plain and sample.scenario == plain[0]]


def _ratio(
    words: tuple[str, ...], base: str, value: Callable[[Sample], float] = wall, part: str = "copying"
) -> Callable[[Results], Spread | None]:
    return lambda results: ratios(_scenario(results, part, *words), base, "wire", value)


def _share(words: tuple[str, ...], base: str, value: Callable[[Sample], float]) -> Callable[[Results], Spread | None]:
    """wire's part of what ``base`` takes."""
    return lambda results: _inverse(ratios(_scenario(results, "copying", *words), base, "wire", value))


def _inverse(found: Spread | None) -> Spread | None:
    return found and Spread(1 / found.median, 1 / found.high, 1 / found.low, found.count)


def _of_wire(results: Results) -> list[Sample]:
    samples = (*results.of("copying"), *results.of("growth"))
    return [sample for sample in samples if sample.contender == "wire" and not sample.failed]


def _most(values: list[float]) -> Spread | None:
    return Spread(max(values), min(values), max(values), len(values)) if values else None


def _memory(results: Results) -> Spread | None:
    """The most that wire took in any copy or growth run, above the bare interpreter."""
    interpreter = float(results.runs[-1]["machine"].get("interpreter_mib", 0)) if results.runs else 0.0
    return _most([sample.peak / MIB - interpreter for sample in _of_wire(results)])


def _memory_inside(results: Results) -> Spread | None:
    """The most that copying added to what the process held when it began: imports and the list of requests."""
    told = [sample for sample in _of_wire(results) if sample.phases.get("memory_before")]
    return _most([(sample.peak - int(sample.phases["memory_before"])) / MIB for sample in told])


def _inside_c_loop(results: Results) -> Spread | None:
    """CPU that wire's copying took, without the interpreter's start and imports, of the C loop's whole run."""
    samples = _scenario(results, "copying", "download", *_LARGE, ", http;")
    return _inverse(ratios(samples, "C loop", "wire", tables.inner_cpu))


def _reuse(results: Results) -> Spread | None:
    """A file's time at the largest size, divided by that at the smallest, round by round."""
    samples = [sample for sample in results.of("reuse") if sample.contender == "reuse"]
    sizes = sorted({sample.at for sample in samples if sample.at})
    named = [replace(sample, contender=f"{sample.at}") for sample in samples]
    return ratios(named, f"{sizes[-1]}", f"{sizes[0]}", tables.microseconds) if len(sizes) > 1 else None


def _reuse_read(results: Results) -> Spread | None:
    samples = [sample for sample in results.of("reuse") if sample.contender == "reuse"]
    return spread(samples, lambda sample: float(sample.phases.get("read") or 0) / MIB)


def _native_savepoint(results: Results) -> Spread | None:
    samples = [sample for sample in results.of("savepoint") if sample.contender == "native"]
    return spread(samples, lambda sample: float(sample.phases.get("bytes_moved") or 0) / MIB)


def _outside(results: Results) -> Spread | None:
    samples = [sample for sample in _scenario(results, "recovery", "1 to 2") if sample.contender == "wire"]
    phases = ("plan", "open", "clip", "ingest")
    return spread(samples, lambda sample: sum(float(sample.phases.get(phase) or 0) for phase in phases))


_LARGE, _SMALL = ("x 64 MiB",), ("x 64 KiB",)
GOALS = (
    Goal(
        "download of 64 MiB files over HTTP, against s5cmd",
        2.0,
        "x",
        True,
        _ratio(("download", *_LARGE, ", http;"), "s5cmd"),
    ),
    Goal(
        "download of 64 MiB files over HTTPS, against s5cmd",
        1.5,
        "x",
        True,
        _ratio(("download", *_LARGE, ", https;"), "s5cmd"),
    ),
    Goal("download of 64 KiB files, against s5cmd", 5.0, "x", True, _ratio(("download", *_SMALL, ", http;"), "s5cmd")),
    Goal("upload over HTTP, CPU, of s5cmd's", 0.1, "", False, _share(("upload", *_LARGE, ", http;"), "s5cmd", cpu)),
    Goal("upload over HTTPS, CPU, of s5cmd's", 0.5, "", False, _share(("upload", *_LARGE, ", https;"), "s5cmd", cpu)),
    Goal(
        "recovery 1 to 2, against the sequential stream (the original: 4.35x)",
        4.4,
        "x",
        True,
        _ratio(("1 to 2",), "stream, one by one", inner, part="recovery"),
    ),
    Goal(
        "download of 64 MiB files from a store on this machine, against the sequential stream",
        4.4,
        "x",
        True,
        _ratio(("download", *_LARGE, ", http;"), "stream, one by one"),
    ),
    Goal(
        "CPU of the C loop's, whole process with interpreter start and imports",
        1.25,
        "x",
        False,
        _share(("download", *_LARGE, ", http;"), "C loop", cpu),
    ),
    Goal("CPU of the C loop's, inside `copy_files` alone", 1.25, "x", False, _inside_c_loop),
    Goal("memory above the interpreter, at most", 64, " MiB", False, _memory),
    Goal("memory that `copy_files` adds, at most", 64, " MiB", False, _memory_inside),
    Goal(
        "scale-out 1 to 2, against s5cmd that fetches everything",
        3.5,
        "x",
        True,
        _ratio(("1 to 2",), "s5cmd, as the original", inner, part="recovery"),
    ),
    Goal("recovery outside the transfer", 1.0, " s", False, _outside),
    Goal("restore by reuse, time of a file, largest against smallest", 1.5, "x", False, _reuse),
    Goal("restore by reuse, read from files", 0.1, " MiB", False, _reuse_read),
    Goal("native savepoint on one endpoint, bytes through the client", 0.0, " MiB", False, _native_savepoint),
)


def table(results: Results) -> str:
    return markdown(["goal", "wanted", "measured", ""], (goal.row(results) for goal in GOALS))
