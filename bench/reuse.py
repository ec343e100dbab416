"""Restore by reuse: constant time per file, whatever its size, and no data read.

``python -m statelift.bench.reuse`` restores SST files that lie on the same disk by hard links and
prints, per size, the time per file and the bytes that the process read from storage or cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

from ..backends.closeables import CloseableRegistry
from ..backends.options import Configuration
from ..transfer.checkpoint.layout import CheckpointLocation
from ..transfer.downloader import Download, StateDownloader
from ..transfer.file_systems import FileSystems
from ..transfer.handles import RelativeFileHandle
from .sample import Recorder, Sample
from .servers import Servers
from .settings import Settings

SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)


PART = "reuse"
FILES = 8


def measure(settings: Settings, recorder: Recorder, _servers: Servers) -> None:
    """Files of each size, linked and copied."""
    restore_files(settings.scratch / "warm-up", SIZES[0], 1)
    for number in range(settings.rounds):
        for size in SIZES[:-1] if settings.quick else SIZES:
            for way in (False, True):
                recorder.sample(_one(settings.scratch / "reuse", size, number, force_copy=way))


def _one(directory: Path, size: int, number: int, *, force_copy: bool) -> Sample:
    files = FILES
    try:
        found = restore_files(directory, size, files, force_copy=force_copy)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    way = str(found["way"])
    sample = Sample(PART, "files on this disk", way, number, bytes=size * files, files=files, at=float(size))
    read = found["bytes_read"]
    wrong = way == "reuse" and (found["bytes_moved"] != 0 or found["methods"] != {"hard-link": files})
    failed = f"not reused: {found['methods']}" if wrong else None
    phases = {"microseconds": found["microseconds_per_file"], "read": read}
    return dataclasses.replace(sample, wall=float(str(found["seconds"])), phases=phases, failed=failed)


def restore_files(directory: Path, size: int, files: int, *, force_copy: bool = False) -> dict[str, object]:
    """Restore ``files`` files of ``size`` bytes once: seconds per file and bytes read."""
    location = CheckpointLocation(str(directory / "job"), 1)
    os.makedirs(location.shared, exist_ok=True)
    handles = [RelativeFileHandle("shared", f"{size}-{index}", size) for index in range(files)]
    block = os.urandom(64 << 10)
    for handle in handles:
        with open(location.resolve(handle).uri, "wb") as file:
            file.writelines(block for _ in range(size // len(block)))
    into = directory / f"into-{size}-{force_copy}"
    downloads = [Download(handle, str(into / f"{index:06d}.sst")) for index, handle in enumerate(handles)]
    options = {"state.force-copy": str(force_copy).lower(), "local.link": "none"}
    with FileSystems(Configuration(options, environ={})) as systems:
        before, started = _read(), time.perf_counter()
        report = StateDownloader(systems).download(location, downloads, CloseableRegistry())
        seconds, read = time.perf_counter() - started, _read() - before
    return {
        "way": "copy" if force_copy else "reuse",
        "size": size,
        "files": files,
        "seconds": round(seconds, 6),
        "microseconds_per_file": round(seconds / files * 1e6, 1),
        "bytes_read": read,
        "bytes_moved": report.bytes_moved,
        "methods": report.methods,
    }


def _read() -> int:
    """Bytes that this process has read by system calls (``rchar`` of proc(5))."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m statelift.bench.reuse", description=__doc__)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--copies", action="store_true", help="measure copies of the same files too")
    arguments = parser.parse_args()
    for size in SIZES:
        for force_copy in (False, True) if arguments.copies else (False,):
            with tempfile.TemporaryDirectory(prefix="statelift-reuse-") as directory:
                print(json.dumps(restore_files(Path(directory), size, arguments.files, force_copy=force_copy)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
