"""Plots of the results: what a reader should see before the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .rounds import spread
from .sample import Results, Sample
from .tables import inner, number, ranked

OURS, OURS_LIGHT, THEIRS, THEIRS_LIGHT, INK, FAINT = "#c8553d", "#eab8ab", "#4a6c8c", "#b9c8d6", "#22262b", "#8b939c"
_PHASES = {
    "plan": "#d9d2c5",
    "transfer": "#4a6c8c",
    "verify": "#83a0bb",
    "open": "#e0a458",
    "clip": "#c8553d",
    "first read": "#7a9e7e",
}


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update(
        {
            "font.family": "DejaVu Sans",
            "font.size": 9,
            "text.color": INK,
            "axes.labelcolor": INK,
            "xtick.color": FAINT,
            "ytick.color": INK,
            "axes.edgecolor": FAINT,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 10,
            "axes.titleweight": "bold",
            "figure.dpi": 160,
            "savefig.bbox": "tight",
            "savefig.pad_inches": 0.2,
            "legend.frameon": False,
        }
    )
    return plt


def _median(samples: Sequence[Sample], name: str, value: Callable[[Sample], float]) -> float:
    found = spread([each for each in samples if each.contender == name], value)
    return found.median if found else 0.0


def _counted(samples: Sequence[Sample]) -> list[str]:
    """Contenders that have a result, the quickest first."""
    return [name for name in ranked(samples) if _median(samples, name, lambda sample: sample.wall)]


def _is_ours(name: str) -> bool:
    return name.startswith("wire")


def _finish(figure: Any, title: str, says: str, note: str, path: Path) -> Path:
    """Title, a line that tells how to read the plot, and the machine; distances are in inches of any figure."""
    inch = 1 / figure.get_figheight()
    figure.text(0.01, 1 + 0.34 * inch, title, ha="left", va="bottom", fontsize=13, fontweight="bold")
    figure.text(0.01, 1 + 0.12 * inch, says, ha="left", va="bottom", fontsize=9, color=FAINT)
    below = 0.36 if figure.legends else 0.08
    figure.text(0.01, -below * inch, note, ha="left", va="top", fontsize=7.5, color=FAINT)
    figure.savefig(path, facecolor="white")
    _pyplot().close(figure)
    return path


def _bare(axis: Any) -> None:
    """No x axis: the numbers stand at the bars."""
    axis.spines["bottom"].set_visible(False)
    axis.spines["left"].set_visible(False)
    axis.set_xticks([])
    axis.tick_params(axis="y", length=0)


def _label_ours(axis: Any, names: Sequence[str]) -> None:
    for label, name in zip(axis.get_yticklabels(), names, strict=True):
        if _is_ours(name):
            label.set_color(OURS)
            label.set_fontweight("bold")


def copying(results: Results, scenarios: Sequence[str], note: str, path: Path) -> Path | None:
    """Wall time as bars, CPU time as the dark part in front of it."""
    chosen = [name for name in scenarios if _counted(_in(results, "copying", name))]
    if not chosen:
        return None
    plt = _pyplot()
    rows = -(-len(chosen) // 2)
    counts = [len(_counted(_in(results, "copying", name))) for name in chosen]
    heights = [max(counts[start : start + 2]) + 1.4 for start in range(0, len(chosen), 2)]
    figure, axes = plt.subplots(
        rows,
        min(2, len(chosen)),
        figsize=(9.5, 0.28 * sum(heights)),
        gridspec_kw={"height_ratios": heights},
        squeeze=False,
        layout="constrained",
    )
    most = [max(counts[index - index % 2 : index - index % 2 + 2]) for index in range(len(chosen))]
    for axis, name, slots in zip(axes.flat, chosen, most, strict=False):
        _copy_panel(axis, _in(results, "copying", name), name, slots)
    for axis in list(axes.flat)[len(chosen) :]:
        axis.set_visible(False)
    says = "whole processes, start-up included; light bars and numbers: wall time, dark bars: CPU time"
    return _finish(figure, "Copying on one CPU: seconds, less is better", says, note, path)


def _in(results: Results, part: str, scenario: str) -> list[Sample]:
    return [sample for sample in results.of(part) if sample.scenario == scenario]


def _copy_panel(axis: Any, samples: list[Sample], title: str, slots: int) -> None:
    names = _counted(samples)[::-1]
    walls = [_median(samples, name, lambda sample: sample.wall) for name in names]
    cpus = [_median(samples, name, lambda sample: sample.cpu) for name in names]
    light = [OURS_LIGHT if _is_ours(name) else THEIRS_LIGHT for name in names]
    dark = [OURS if _is_ours(name) else THEIRS for name in names]
    axis.barh(names, walls, color=light, height=0.72)
    axis.barh(names, cpus, color=dark, height=0.36)
    for position, value in enumerate(walls):
        axis.text(value + max(walls) * 0.015, position, f"{value:.2f}", va="center", fontsize=8)
    axis.set_xlim(0, max(walls) * 1.12)
    # Bars of one row of panels are equally thick, and begin at the top.
    axis.set_ylim(len(names) - slots - 0.6, len(names) - 0.4)
    axis.set_title(title)
    _bare(axis)
    _label_ours(axis, names)


def recovery(results: Results, note: str, path: Path) -> Path | None:
    """One panel per rescaling, one bar per method, its phases one after another."""
    scenarios = [name for name in results.scenarios("recovery") if _counted(_in(results, "recovery", name))]
    if not scenarios:
        return None
    plt = _pyplot()
    heights = [len(_counted(_in(results, "recovery", name))) + 1.2 for name in scenarios]
    figure, axes = plt.subplots(
        len(scenarios),
        1,
        figsize=(9.5, 0.3 * sum(heights)),
        gridspec_kw={"height_ratios": heights},
        squeeze=False,
        sharex=True,
        layout="constrained",
    )
    for axis, name in zip(axes.flat, scenarios, strict=True):
        _recovery_panel(axis, _in(results, "recovery", name), name)
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in _PHASES.values()]
    axes.flat[-1].legend(
        handles, list(_PHASES), ncols=len(_PHASES), loc="upper left", bbox_to_anchor=(0, 0), fontsize=8
    )
    says = "seconds from the call in a running Python to the first row that is read, phase by phase; less is better"
    return _finish(figure, "Recovery of keyed state on one CPU", says, note, path)


def _recovery_panel(axis: Any, samples: list[Sample], title: str) -> None:
    names = [name for name in ranked(samples, inner) if _median(samples, name, inner)][::-1]
    starts = [0.0] * len(names)
    for each, color in _PHASES.items():
        widths = [_phase(samples, name, each) for name in names]
        axis.barh(names, widths, left=starts, color=color, height=0.7)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    for position, name in enumerate(names):
        total = _median(samples, name, inner)
        axis.text(starts[position], position, f"  {number(total)} s", va="center", fontsize=8)
    axis.set_title(title)
    _bare(axis)
    _label_ours(axis, names)


def _phase(samples: list[Sample], name: str, phase: str) -> float:
    return _median(samples, name, lambda sample: float(sample.phases.get(phase) or 0.0))


def growth(results: Results, note: str, path: Path) -> Path | None:
    """Lines over files, bytes and connections: CPU above, memory below."""
    scenarios = results.scenarios("growth")
    if not scenarios:
        return None
    plt = _pyplot()
    figure, axes = plt.subplots(2, len(scenarios), figsize=(9.5, 5.4), squeeze=False, layout="constrained")
    for column, name in enumerate(scenarios):
        samples = _in(results, "growth", name)
        upper, lower = axes[0][column], axes[1][column]
        _lines(upper, samples, lambda sample: sample.cpu)
        _lines(lower, samples, lambda sample: sample.peak / 2**20)
        if not name.startswith("connections"):
            # From a thousand files to a hundred thousand: small ones would all lie on the axis.
            _logarithmic(upper)
        upper.set_title(name)
    axes[0][0].set_ylabel("CPU, s")
    axes[1][0].set_ylabel("peak memory, MiB")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=len(labels), loc="upper left", bbox_to_anchor=(0, 0), fontsize=8)
    says = "one process on one CPU; above: CPU time, below: memory, flat where it does not grow with what is copied"
    return _finish(figure, "What more files, bytes and connections cost", says, note, path)


def _lines(axis: Any, samples: list[Sample], value: Callable[[Sample], float]) -> None:
    colors = {"wire": OURS, "s5cmd": THEIRS, "obstore": "#7a9e7e", "stream, parallel": "#e0a458", "sdk": FAINT}
    for name in dict.fromkeys(sample.contender for sample in samples):
        counted = [sample for sample in samples if sample.contender == name and not sample.failed]
        points = sorted({sample.at for sample in counted if sample.at})
        if not points:
            continue
        medians = [_median([each for each in counted if each.at == point], name, value) for point in points]
        ours = _is_ours(name)
        width, above = (2.4, 3) if ours else (1.4, 2)
        axis.plot(
            points,
            medians,
            marker="o",
            markersize=3.5,
            linewidth=width,
            color=colors.get(name),
            label=name,
            zorder=above,
        )
    axis.set_xscale("log", base=2)
    axis.set_ylim(bottom=0)
    points = sorted({sample.at for sample in samples if sample.at})
    axis.set_xticks(points, [_short(point) for point in points])
    axis.minorticks_off()
    axis.grid(axis="y", color="#eceef0")
    axis.set_axisbelow(True)


def _logarithmic(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    axis.set_ylim(bottom=None, auto=True)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    axis.minorticks_off()
    axis.margins(y=0.1)
    axis.autoscale(axis="y")


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def neighbour(results: Results, note: str, path: Path) -> Path | None:
    """What a busy neighbour on the same CPU keeps, over the limit that the restore was given."""
    samples = [sample for sample in results.of("neighbour") if not sample.failed and sample.at]
    if not samples:
        return None
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.7), layout="constrained")
    names = list(dict.fromkeys(sample.contender for sample in samples))
    points = sorted({sample.at for sample in samples if sample.at})
    for place, name in enumerate(names):
        color = OURS if _is_ours(name) else THEIRS
        at = [index + (place - (len(names) - 1) / 2) * 0.38 for index in range(len(points))]
        each = [[sample for sample in samples if sample.at == point] for point in points]
        kept = [_median(group, name, lambda sample: 100 * float(sample.phases.get("kept") or 0)) for group in each]
        walls = [_median(group, name, lambda sample: sample.wall) for group in each]
        left.bar(at, kept, width=0.36, color=color, label=name)
        for x, value in zip(at, kept, strict=True):
            left.text(x, 3, f"{value:.0f}", ha="center", fontsize=8, color="white")
        right.bar_label(right.bar(at, walls, width=0.36, color=color), fmt=number, fontsize=8, padding=1)
    for index, point in enumerate(points):
        if point < 100:
            promised = 100 - point
            left.plot([index - 0.45, index + 0.45], [promised, promised], color=INK, linewidth=1.3, linestyle=":")
    left.plot([], [], color=INK, linewidth=1.3, linestyle=":", label="what the limit promises it at least")
    left.set_ylim(0, 100)
    for axis, title in ((left, "the neighbour keeps, % of its own speed"), (right, "the restore takes, s")):
        axis.set_xticks(range(len(points)), [f"limit {point:g} %" if point < 100 else "no limit" for point in points])
        axis.set_title(title)
        axis.grid(axis="y", color="#eceef0")
        axis.set_axisbelow(True)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, ncols=len(labels), loc="upper left", bbox_to_anchor=(0, 0), fontsize=8)
    says = "without a limit the kernel gives each about half; a limit below that leaves the rest to the neighbour"
    return _finish(figure, "A limited restore beside a busy neighbour on the same CPU", says, note, path)
