"""Who copies: each contender is a command line, made from a plan of what to copy.

A contender that is not installed says so in ``missing``; it is skipped with that line.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .data import Object
from .programs import find_rclone, find_s5cmd, first_line
from .servers import BUCKET, Server


@dataclass(frozen=True)
class Plan:
    """What to copy: objects to ``directory``, from there, or to ``copy_prefix`` in the same bucket.

    Args:
        direction: ``download``, ``upload`` or ``server-side``.
        scratch: directory for files that a contender reads its orders from.
    """

    direction: str
    server: Server
    objects: list[Object]
    directory: Path
    scratch: Path
    prefix: str
    connections: int | None = None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(source, destination) of each object, as URIs and paths."""
        return [self._pair(each) for each in self.objects]

    def _pair(self, each: Object) -> tuple[str, str]:
        path, uri = str(self.directory / each.name), f"s3://{BUCKET}/{each.key}"
        target = f"s3://{BUCKET}/{self.prefix}/{each.name}"
        return {"download": (uri, path), "upload": (path, target), "server-side": (uri, target)}[self.direction]

    def write(self) -> Path:
        """The plan as JSON, for contenders that are Python functions of `peers`."""
        path = self.scratch / "plan.json"
        files = [
            {"source": source, "destination": destination, "size": each.size, "crc64nvme": each.crc64nvme}
            for each, (source, destination) in zip(self.objects, self.pairs, strict=True)
        ]
        about = {"direction": self.direction, "endpoint": self.server.endpoint, "connections": self.connections}
        path.write_text(json.dumps({**about, "files": files}))
        return path


@dataclass(frozen=True)
class Contender:
    """One way of copying.

    Args:
        command: the argv for a plan; may write files into its scratch directory.
        missing: why it cannot run here, or None.
        directions: what it can do at all.
    """

    name: str
    command: Callable[[Plan], list[str]]
    missing: Callable[[], str | None] = lambda: None
    directions: frozenset[str] = frozenset({"download", "upload"})


C_LOOP = Path(__file__).parent / "c_loop.c"
BOTH = frozenset({"download", "upload"})
ALL = BOTH | {"server-side"}


def _python(function: str) -> Callable[[Plan], list[str]]:
    return lambda plan: [sys.executable, "-m", "statelift.bench.peers", function, str(plan.write())]


def _module(name: str) -> Callable[[], str | None]:
    import importlib.util

    return lambda: None if importlib.util.find_spec(name) else f"{name} is not installed"


def _program(*command: str) -> Callable[[], str | None]:
    return lambda: None if first_line(list(command)) else f"{command[0]} is not installed"


def _s5cmd(plan: Plan) -> list[str]:
    """As the original ran it: ``-r 0``, everything else by default."""
    orders = plan.scratch / "s5cmd.txt"
    copy = "cp -c 1" if plan.connections else "cp"
    lines = (f"{copy} {shlex.quote(source)} {shlex.quote(destination)}\n" for source, destination in plan.pairs)
    orders.write_text("".join(lines))
    more = ["--numworkers", str(plan.connections)] if plan.connections else []
    return [find_s5cmd() or "s5cmd", "-r", "0", *more, "run", str(orders)]


def _rclone(plan: Plan) -> list[str]:
    names = plan.scratch / "rclone.txt"
    names.write_text("".join(f"{each.name}\n" for each in plan.objects))
    source_prefix = plan.objects[0].key.rpartition("/")[0]
    there, here = f"bench:{BUCKET}/{source_prefix}", str(plan.directory)
    target = f"bench:{BUCKET}/{plan.prefix}"
    sides = {"download": (there, here), "upload": (here, target), "server-side": (there, target)}[plan.direction]
    options = ["--files-from-raw", str(names), "--no-traverse", "--s3-no-check-bucket", "--transfers", "8"]
    return [find_rclone() or "rclone", "copy", *sides, *options]


def _aws(plan: Plan) -> list[str]:
    source_prefix = plan.objects[0].key.rpartition("/")[0]
    there, here, target = f"s3://{BUCKET}/{source_prefix}/", str(plan.directory), f"s3://{BUCKET}/{plan.prefix}/"
    sides = {"download": (there, here), "upload": (here, target), "server-side": (there, target)}[plan.direction]
    return ["aws", "s3", "cp", "--recursive", "--only-show-errors", *sides]


def _c_loop(plan: Plan) -> list[str]:
    """The floor: blocking sockets, 1 MiB ``recv`` and ``write``, no signature, no check."""
    program = plan.scratch / "c_loop"
    if not program.exists():
        subprocess.run(["gcc", "-O2", "-pthread", "-o", str(program), str(C_LOOP)], check=True, capture_output=True)
    orders = plan.scratch / "c_loop.txt"
    lines = (f"/{BUCKET}/{each.key}\t{each.size}\t{plan.directory / each.name}\n" for each in plan.objects)
    orders.write_text("".join(lines))
    url = urlsplit(plan.server.endpoint)
    return [str(program), str(url.hostname), str(url.port), str(plan.connections or 4), str(orders)]


def _no_c_loop() -> str | None:
    if not C_LOOP.is_file():
        return "its source is not there"
    return None if first_line(["gcc", "--version"]) else "no C compiler is installed"


def _installed(find: Callable[[], str | None], name: str) -> Callable[[], str | None]:
    return lambda: None if find() else f"{name} is not installed"


CONTENDERS = {
    each.name: each
    for each in (
        Contender("stream, one by one", _python("stream_one_by_one"), _module("s3fs")),
        Contender("stream, parallel", _python("stream_parallel"), _module("s3fs")),
        Contender("sdk", _python("sdk_classic"), _module("s3transfer")),
        Contender("sdk, CRT", _python("sdk_crt"), _module("awscrt")),
        Contender("s5cmd", _s5cmd, _installed(find_s5cmd, "s5cmd"), ALL),
        Contender("s5cmd, through statelift", _python("s5cmd"), _installed(find_s5cmd, "s5cmd"), ALL),
        Contender("wire", _python("wire"), directions=ALL),
        Contender("wire, without checksums", _python("wire_unverified"), directions=ALL),
        Contender("C loop", _c_loop, _no_c_loop, frozenset({"download"})),
        Contender("obstore", _python("obstore"), _module("obstore"), ALL),
        Contender("s3fs", _python("s3fs"), _module("s3fs"), ALL),
        Contender("rclone copy", _rclone, _installed(find_rclone, "rclone"), ALL),
        Contender("aws s3 cp", _aws, _program("aws", "--version")),
    )
}
