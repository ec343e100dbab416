"""``statelift bench report``: the results as Markdown tables and plots."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from . import figures, goals, tables
from .data import size_text
from .sample import LINES, Results, Sample, read
from .tables import MIB, PEAK, RECEIVED, SENT, SYSTEM, USER, WALL, against, comparison, cpu, inner, phase, wall

_INTRODUCTION = """\
Every figure is that of a whole process on one CPU, start-up included, the server on another CPU.
Contenders take turns in rounds; `x` is the median of the ratios within each round (above 1 is
quicker), in brackets the smallest and the largest of the rounds. A run counts only if every byte
that it wrote has the right checksum."""

_COPYING = """\
The light server counts the bytes that a contender received and sent on its connections; rclone's
server does not. The light server throws uploads away; those to rclone's are verified.
`wire` and the libraries have their own clock: "without start-up" begins after
imports. System calls are those of a whole process, start-up included, in a traced run of its own
that is not timed. The C loop checks nothing, signs nothing and speaks no TLS."""

_SPARK = """\
Two executors of one core each: where there are two CPUs, each executor is pinned to one and shares
the first with the server, so that the figures compare methods and not machines. Times are those of
the job, CPU that of its tasks. Spark's own state store runs in one process, pinned to nothing, and
loads the same number of bytes as keys and values; over S3A from moto's server, whose own speed
limits it."""

_SAVEPOINT = """\
One subtask's state on one S3 endpoint. `native` asks the store to copy, so that no byte of the state
passes through the client; `canonical` reads it and writes Parquet. Each is restored afterwards and
every row compared."""

_REUSE = """\
SST files that lie on the disk of the restored database already: linked, and copied for comparison.
What is read while linking is metadata of the process itself, not state."""

_GROWTH = """\
One run for each point. Where there are very many files or bytes only wire, s5cmd and obstore go on."""

_NEIGHBOUR = """\
Another process computes on the same CPU without a pause while files are downloaded. The kernel
would share the CPU evenly; a limit leaves more to the neighbour and makes the download longer."""

_RECOVERY = """\
One subtask's state on one CPU: from the call in a running Python to the first row that is read.
The distant store answers after 30 ms and gives each connection 100 MB/s, as S3 does.
The streams, the SDK, CRT and `s5cmd, as the original` bring every file of the checkpoint and clip
afterwards; `s5cmd, through statelift` and `wire` bring what overlaps the subtask's key groups.
Afterwards every row is compared with what the job wrote."""


def main(argv: Sequence[str] | None = None) -> int:
    """Write ``REPORT.md`` and the plots. Returns 0, or 1 where there are no results yet."""
    parser = argparse.ArgumentParser(prog="statelift bench report", description="Tables and plots of the results.")
    parser.add_argument("samples", type=Path, nargs="?", default=LINES, help="results file")
    parser.add_argument("--into", type=Path, help="directory to write to; by default that of the results")
    arguments = parser.parse_args(argv)
    if not arguments.samples.is_file():
        print(f"no results in {arguments.samples}: run python -m statelift.bench first")
        return 1
    into = arguments.into or arguments.samples.parent
    into.mkdir(parents=True, exist_ok=True)
    print(write(read(arguments.samples), into))
    return 0


def write(results: Results, into: Path) -> Path:
    note = machine_line(results)
    drawn = draw(results, note, into)
    chapters = [
        f"# Benchmarks\n\n{_INTRODUCTION}\n\n{note}",
        "## Goals\n\n" + goals.table(results),
        _recovery(results, drawn),
        _copying(results, drawn),
        _spark(results),
        _savepoint(results),
        _reuse(results),
        _growth(results, drawn),
        _neighbour(results, drawn),
        _skipped(results),
    ]
    path = into / "REPORT.md"
    path.write_text("\n\n".join(chapter for chapter in chapters if chapter) + "\n")
    return path


def machine_line(results: Results) -> str:
    if not results.runs:
        return ""
    about = results.runs[-1]["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    quick = " Quick run: small sizes, few rounds." if any(run.get("quick") for run in results.runs) else ""
    return (
        f"{about['cpu']}, {about['cpus']} CPUs, {about['memory_gib']} GiB, {about['system']}, "
        f"Python {about['python']}, {about['date']}. {versions}.{quick}"
    )


def draw(results: Results, note: str, into: Path) -> dict[str, Path]:
    """The plots for which there are figures, by part."""
    note = note.partition(". ")[0] + "."
    scenarios = [name for name in results.scenarios("copying") if "MiB of memory" not in name]
    shown = [name for name in scenarios if name.startswith("download")][:4] + [
        name for name in scenarios if name.startswith("upload")
    ][:2]
    made = {
        "recovery": figures.recovery(results, note, into / "recovery.png"),
        "copying": figures.copying(results, shown, note, into / "copying.png"),
        "growth": figures.growth(results, note, into / "growth.png"),
        "neighbour": figures.neighbour(results, note, into / "neighbour.png"),
    }
    return {part: path for part, path in made.items() if path}


def _picture(drawn: dict[str, Path], part: str, says: str) -> str:
    return f"![{says}]({drawn[part].name})\n\n" if part in drawn else ""


def _in(results: Results, part: str, scenario: str) -> list[Sample]:
    return [sample for sample in results.of(part) if sample.scenario == scenario]


def _recovery(results: Results, drawn: dict[str, Path]) -> str:
    names = results.scenarios("recovery")
    if not names:
        return ""
    base = "stream, one by one"
    columns = [
        tables.measured("recovery, s", inner),
        against(base, "against the sequential stream", inner),
        *(phase(name) for name in ("plan", "transfer", "verify", "open", "clip", "first read")),
        tables.middle("whole process, s", wall),
        tables.middle("CPU, s", cpu),
        PEAK,
        RECEIVED,
    ]
    parts = [f"### {name}\n\n" + comparison(_in(results, "recovery", name), columns, "method", inner) for name in names]
    return (
        "## Recovery\n\n" + _RECOVERY + "\n\n" + _picture(drawn, "recovery", "Recovery by method") + "\n\n".join(parts)
    )


def _copying(results: Results, drawn: dict[str, Path]) -> str:
    names = results.scenarios("copying")
    if not names:
        return ""
    parts = [f"### {name}\n\n" + _copying_table(results, name) for name in names]
    return (
        "## Copying\n\n" + _COPYING + "\n\n" + _picture(drawn, "copying", "Copying by contender") + "\n\n".join(parts)
    )


def _copying_table(results: Results, scenario: str) -> str:
    samples = _in(results, "copying", scenario)
    traced = _in(results, "system calls", scenario)
    columns = [
        WALL,
        against("s5cmd", "against s5cmd", wall),
        tables.middle("without start-up, s", inner),
        USER,
        SYSTEM,
        against("s5cmd", "CPU against s5cmd", cpu),
        PEAK,
        SENT if scenario.startswith("upload") else RECEIVED,
    ]
    return comparison(samples, [*columns, *([tables.system_calls(traced)] if traced else [])], "contender")


def _spark(results: Results) -> str:
    names = results.scenarios("spark")
    if not names:
        return ""
    columns = [WALL, tables.middle("CPU, s", cpu), tables.middle("copied, MiB", lambda each: each.received / MIB)]
    parts = [f"### {name}\n\n" + comparison(_in(results, "spark", name), columns, "method") for name in names]
    return "## Through Spark\n\n" + _SPARK + "\n\n" + "\n\n".join(parts)


def _savepoint(results: Results) -> str:
    names = results.scenarios("savepoint")
    if not names:
        return ""
    moved = tables.measured(
        "through the client, MiB", lambda sample: float(sample.phases.get("bytes_moved") or 0) / MIB
    )
    columns = [tables.measured("savepoint, s", inner), tables.middle("CPU, s", cpu), PEAK, moved]
    parts = [f"### {name}\n\n" + comparison(_in(results, "savepoint", name), columns, "savepoint") for name in names]
    return "## Savepoints\n\n" + _SAVEPOINT + "\n\n" + "\n\n".join(parts)


def _reuse(results: Results) -> str:
    samples = [sample for sample in results.of("reuse") if sample.at]
    if not samples:
        return ""
    rows = []
    for size in sorted({sample.at for sample in samples if sample.at}):
        group = [sample for sample in samples if sample.at == size]
        columns = (
            tables.measured("", tables.microseconds),
            tables.measured("", lambda sample: float(sample.phases.get("read") or 0) / MIB / sample.files),
        )
        shown = (column.text(group, name) for name in ("reuse", "copy") for column in columns)
        rows.append([size_text(int(size)), *shown])
    head = ["a file of", "reused, µs", "read, MiB", "copied, µs", "read, MiB"]
    return "## Restore by reuse\n\n" + _REUSE + "\n\n" + tables.markdown(head, rows)


def _growth(results: Results, drawn: dict[str, Path]) -> str:
    names = results.scenarios("growth")
    if not names:
        return ""
    parts = []
    for name in names:
        samples = _in(results, "growth", name)
        head = [name, "contender", "wall, s", "CPU, s", "peak memory, MiB"]
        parts.append(tables.markdown(head, _growth_rows(samples)))
    return "## Growth\n\n" + _GROWTH + "\n\n" + _picture(drawn, "growth", "Growth") + "\n\n".join(parts)


def _growth_rows(samples: list[Sample]) -> list[list[str]]:
    rows = []
    for point in sorted({sample.at for sample in samples if sample.at}):
        group = [sample for sample in samples if sample.at == point]
        for name in tables.ranked(group):
            columns = [tables.middle("", wall), tables.middle("", cpu), PEAK]
            failed = next((each.failed for each in group if each.contender == name and each.failed), None)
            shown = [column.text(group, name) for column in columns] if not failed else [failed, "", ""]
            rows.append([f"{point:g}", name, *shown])
    return rows


def _neighbour(results: Results, drawn: dict[str, Path]) -> str:
    samples = [sample for sample in results.of("neighbour") if sample.at]
    if not samples:
        return ""
    head = ["limit, % of a CPU", "restore by", "takes, s", "restore's CPU, % of wall", "neighbour keeps, %"]
    columns = [
        tables.middle("", wall),
        tables.middle("", lambda sample: 100 * sample.cpu / sample.wall),
        tables.middle("", lambda sample: 100 * float(sample.phases.get("kept") or 0)),
    ]
    rows = []
    for point in sorted({sample.at for sample in samples if sample.at}):
        group = [sample for sample in samples if sample.at == point]
        limit = f"{point:g}" if point < 100 else "none"
        rows += [[limit, name, *(column.text(group, name) for column in columns)] for name in tables.ranked(group)]
    return (
        "## A busy neighbour on the same CPU\n\n"
        + _NEIGHBOUR
        + "\n\n"
        + _picture(drawn, "neighbour", "A busy neighbour")
        + tables.markdown(head, rows)
    )


def _skipped(results: Results) -> str:
    if not results.skipped:
        return ""
    lines = dict.fromkeys(f"- {each.contender}, {each.scenario}: {each.reason}" for each in results.skipped)
    return "## Not run here\n\n" + "\n".join(lines)
