"""What more files, more bytes and more connections cost in CPU and memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from .contenders import CONTENDERS, Plan
from .data import Object, Shape
from .sample import Recorder, Sample
from .servers import Server, Servers
from .settings import GIB, MIB, Settings
from .trial import Conditions, available, try_once

PART = "growth"
FILE = 64 * MIB
TINY = 4 << 10
#: Beyond so many files or bytes only these run: the others take minutes.
MANY = 5_000
MUCH = 2 * GIB
QUICK_ONES = {"s5cmd", "wire", "obstore"}


@dataclass(frozen=True)
class Point:
    """One run's size: ``at`` is its place on the axis that ``axis`` names."""

    axis: str
    at: float
    shape: Shape
    connections: int | None = None


def measure(settings: Settings, recorder: Recorder, servers: Servers) -> None:
    with servers.serving() as server:
        _run(_by_count(settings), ("s5cmd", "wire", "obstore", "stream, parallel", "sdk"), settings, recorder, server)
        _run(_by_size(settings), ("s5cmd", "wire", "obstore", "stream, parallel", "sdk"), settings, recorder, server)
    with servers.serving(slow=True) as server:
        _run(_by_connections(settings), ("s5cmd", "wire", "obstore"), settings, recorder, server)


def _by_count(settings: Settings) -> list[Point]:
    return [Point("files of 4 KiB", count, Shape(count, TINY)) for count in settings.growth_counts]


def _by_size(settings: Settings) -> list[Point]:
    return [Point("GiB in files of 64 MiB", size / GIB, Shape(size // FILE, FILE)) for size in settings.growth_sizes]


def _by_connections(settings: Settings) -> list[Point]:
    half = Shape(settings.large.count // 2, settings.large.size)
    return [Point("connections of 100 MB/s", count, half, count) for count in settings.growth_connections]


def _run(points: list[Point], names: Sequence[str], settings: Settings, recorder: Recorder, server: Server) -> None:
    """One round of every point; the objects of the largest serve the smaller ones too."""
    axis = points[0].axis
    largest = server.objects(max((point.shape for point in points), key=lambda shape: shape.bytes))
    contenders = available(names, PART, axis, "download", recorder)
    conditions = Conditions(settings.cpu, timeout=600.0)
    for point in points:
        plan = _plan(point, largest[: point.shape.count], settings, server)
        sample = Sample(PART, axis, "", 0, bytes=point.shape.bytes, files=point.shape.count, at=point.at)
        for contender in contenders:
            small = point.shape.count <= MANY and point.shape.bytes <= MUCH
            if small or contender.name in QUICK_ONES:
                named = dataclasses.replace(sample, contender=contender.name)
                recorder.sample(try_once(CONTENDERS[contender.name], plan, named, conditions))


def _plan(point: Point, objects: list[Object], settings: Settings, server: Server) -> Plan:
    target, scratch = settings.scratch / "target", settings.scratch
    return Plan("download", server, objects, target, scratch, prefix="written", connections=point.connections)
