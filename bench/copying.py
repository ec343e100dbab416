"""Copying files to and from S3, and within it: every contender at every shape."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from dataclasses import dataclass

from . import system_calls
from .contenders import CONTENDERS, Plan
from .data import Shape
from .memory_limit import limited
from .sample import Recorder, Sample, Silent
from .servers import Server, Servers
from .settings import MIB, Settings
from .trial import Conditions, available, interleave, try_once

PART = "copying"
MEMORY = 512 << 20
MAIN = ("s5cmd", "wire", "s5cmd, through statelift", "sdk", "sdk, CRT", "stream, parallel", "stream, one by one")
PEERS = ("obstore", "s3fs", "rclone copy", "aws s3 cp")
FLOOR = "C loop"
FAST = ("s5cmd", "wire", "obstore")
#: Those that DESIGN.md compares everywhere.
NATIVE = (*FAST, "sdk", "sdk, CRT")
#: Those that goals name, in all rounds of the main scenarios; the others are slower and run in a few.
REPEATED = (*FAST, FLOOR, "stream, one by one")
UNVERIFIED = "wire, without checksums"
SCHEMES = ("http", "https")


@dataclass(frozen=True)
class Scenario:
    """One line of the matrix.

    Args:
        main: run in every size of benchmark; ``thorough`` ones only in the longest.
        keeping: from a server that keeps what is uploaded.
    """

    direction: str
    shape: Shape
    scheme: str = "http"
    slow: bool = False
    contenders: tuple[str, ...] = (*MAIN, *PEERS)
    memory: int | None = None
    main: bool = False
    thorough: bool = False
    keeping: bool = False

    @property
    def name(self) -> str:
        slow = ", 30 ms to the first byte and 100 MB/s a connection" if self.slow else ""
        memory = f", {self.memory >> 20} MiB of memory" if self.memory else ""
        server = ", rclone serve s3" if self.keeping else ""
        return f"{self.direction} {self.shape}, {self.scheme}{slow}{memory}{server}"


def matrix(settings: Settings) -> list[Scenario]:
    """Every shape and direction over HTTP and HTTPS, then the slow link, kept uploads and little memory."""
    everything = _everything(settings)
    if settings.quick:
        return [scenario for scenario in everything if scenario.main]
    return [scenario for scenario in everything if settings.thorough or not scenario.thorough]


def _everything(settings: Settings) -> list[Scenario]:
    return [
        *_downloads(settings.large, settings.small, settings.huge),
        *_uploads(settings.large, settings.small, settings.huge),
        *_slow(settings.large, settings.small),
        *_kept(settings.large, settings.huge),
        *_tight(settings.large),
    ]


def _downloads(large: Shape, small: Shape, huge: Shape) -> list[Scenario]:
    return [
        Scenario("download", large, contenders=(*MAIN, *PEERS[:2], UNVERIFIED, FLOOR), main=True),
        Scenario("download", small, contenders=(*MAIN, *PEERS[:2], FLOOR), main=True),
        Scenario("download", huge, contenders=(*NATIVE, FLOOR)),
        Scenario("download", large, "https", contenders=(*MAIN[:4], *PEERS[:2], "sdk, CRT"), main=True),
        Scenario("download", small, "https", contenders=NATIVE),
        Scenario("download", huge, "https", contenders=NATIVE),
    ]


def _uploads(large: Shape, small: Shape, huge: Shape) -> list[Scenario]:
    """To the light server, which throws them away: these compare clients alone."""
    return [
        Scenario("upload", large, contenders=(*NATIVE, "s5cmd, through statelift"), main=True),
        Scenario("upload", large, "https", contenders=NATIVE, main=True),
        *(Scenario("upload", shape, scheme, contenders=NATIVE) for shape in (small, huge) for scheme in SCHEMES),
    ]


def _slow(large: Shape, small: Shape) -> list[Scenario]:
    return [
        *(
            Scenario("download", each, scheme, slow=True, contenders=FAST)
            for each in (large, small)
            for scheme in SCHEMES
        ),
        *(Scenario("upload", large, scheme, slow=True, contenders=FAST) for scheme in SCHEMES),
    ]


def _kept(large: Shape, huge: Shape) -> list[Scenario]:
    """By a server that lists buckets, which rclone and aws do first, and that keeps uploads: they are verified."""
    return [
        Scenario("download", large, contenders=("s5cmd", "wire", *PEERS[2:]), keeping=True),
        Scenario("upload", large, contenders=(*MAIN[:4], *PEERS), keeping=True),
        Scenario("server-side", large, contenders=(*MAIN[:3], *PEERS[:3]), keeping=True),
        Scenario("server-side", large, "https", contenders=FAST, keeping=True, thorough=True),
        Scenario("server-side", huge, contenders=FAST, keeping=True, thorough=True),
    ]


def _tight(large: Shape) -> list[Scenario]:
    return [
        Scenario("download", large, contenders=(*MAIN, *PEERS[:2]), memory=MEMORY),
        Scenario(
            "download", large, contenders=("s5cmd", "wire", *PEERS[2:]), memory=MEMORY, keeping=True, thorough=True
        ),
        Scenario("upload", large, contenders=(*MAIN, *PEERS[:2]), memory=MEMORY),
    ]


def measure(settings: Settings, recorder: Recorder, servers: Servers) -> None:
    """Run the matrix, after a round of every contender that does not count: it fills the page cache."""
    warm_up = Scenario("download", Shape(4, MIB), contenders=(*MAIN, *PEERS), keeping=True)
    with servers.serving(keeping=True) as server:
        measure_one(warm_up, dataclasses.replace(settings, few_rounds=1), Silent(), server)
    for scenario in matrix(settings):
        with servers.serving(scenario.scheme, slow=scenario.slow, keeping=scenario.keeping) as server:
            measure_one(scenario, settings, recorder, server)


def measure_one(scenario: Scenario, settings: Settings, recorder: Recorder, server: Server) -> None:
    """All rounds of one scenario."""
    found = available(scenario.contenders, PART, scenario.name, scenario.direction, recorder)
    plan = plan_of(scenario, settings, server)
    with ExitStack() as stack:
        memory = stack.enter_context(limited(scenario.memory)) if scenario.memory else None
        conditions = Conditions(settings.cpu, memory=memory)

        def one(name: str, number: int) -> Sample:
            shape = scenario.shape
            sample = Sample(PART, scenario.name, name, number, bytes=shape.bytes, files=shape.count)
            return try_once(CONTENDERS[name], plan, sample, conditions)

        rounds = {each.name: rounds_of(each.name, scenario, settings) for each in found}
        interleave(rounds, one, recorder)
    if settings.thorough and scenario.main and scenario.direction == "download":
        system_calls.measure_one(scenario.name, found, plan, settings.cpu, recorder)


def rounds_of(name: str, scenario: Scenario, settings: Settings) -> int:
    return settings.rounds if scenario.main and name in REPEATED else settings.few_rounds


def plan_of(scenario: Scenario, settings: Settings, server: Server) -> Plan:
    """Downloads read the server's own objects; uploads read the same files from a directory."""
    objects = server.objects(scenario.shape)
    source = server.bucket / scenario.shape.prefix
    directory = source if scenario.direction == "upload" else settings.scratch / "target"
    return Plan(scenario.direction, server, objects, directory, settings.scratch, prefix="written")
