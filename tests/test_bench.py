"""The benchmark's own arithmetic and machinery; no timing decides anything here."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from statelift.bench import report, suite
from statelift.bench.data import Object, Shape, make_objects, wrong_files
from statelift.bench.measure import run
from statelift.bench.memory_limit import limited
from statelift.bench.reuse import restore_files
from statelift.bench.rounds import Spread, order, ratios, spread
from statelift.bench.sample import Recorder, Sample, Skipped, read

MACHINE = {
    "cpu": "a processor",
    "cpus": 2,
    "memory_gib": 8,
    "system": "Linux",
    "python": "3.11",
    "date": "today",
    "interpreter_mib": 10,
    "versions": {"s5cmd": "2.3.0"},
}


def sample(contender: str, number: int, wall: float, **more: object) -> Sample:
    made = {"part": "copying", "scenario": "download 16 x 64 MiB, http", "bytes": 1 << 30, **more}
    return Sample(contender=contender, round=number, wall=wall, user=wall / 2, peak=30 << 20, **made)  # type: ignore[arg-type]


def test_every_contender_runs_once_a_round_from_another_start() -> None:
    names = ["a", "b", "c"]
    rounds = [order(names, number) for number in range(6)]
    assert all(sorted(each) == names for each in rounds)
    assert len({tuple(each) for each in rounds}) > 3


def test_ratios_are_taken_within_a_round() -> None:
    # The machine became ten times slower in the second round: that is nobody's fault.
    samples = [sample("s5cmd", 0, 2), sample("wire", 0, 1), sample("s5cmd", 1, 30), sample("wire", 1, 10)]
    assert ratios(samples, "s5cmd", "wire", lambda each: each.wall) == Spread(2.5, 2.0, 3.0, 2)


def test_failed_runs_do_not_count() -> None:
    samples = [sample("wire", 0, 1), sample("wire", 1, 9, failed="wrong bytes"), sample("s5cmd", 1, 3)]
    assert spread([each for each in samples if each.contender == "wire"], lambda each: each.wall) == Spread(1, 1, 1, 1)
    assert ratios(samples, "s5cmd", "wire", lambda each: each.wall) is None


def test_the_newest_run_of_a_part_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    first = Recorder(path, {"run": "1", "machine": MACHINE})
    first.sample(sample("wire", 0, 7))
    first.sample(sample("wire", 0, 5, part="recovery"))
    other = Recorder(path, {"run": "2", "machine": MACHINE})
    other.sample(sample("wire", 0, 1))
    other.skipped(Skipped("copying", "upload", "aws s3 cp", "not installed"))
    found = read(path)
    assert [(each.part, each.wall) for each in found.samples] == [("recovery", 5), ("copying", 1)]
    assert [each["run"] for each in found.runs] == ["1", "2"]
    assert found.skipped[0].reason == "not installed"


def test_the_report_shows_results_failures_and_what_was_skipped(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    recorder = Recorder(path, {"run": "1", "machine": MACHINE})
    for number in range(3):
        recorder.sample(sample("s5cmd", number, 2.0))
        recorder.sample(sample("wire", number, 0.8))
        recorder.sample(sample("s3fs", number, 0, failed="000001.sst has wrong bytes"))
        phases = {"plan": 0.1, "transfer": 1.0, "open": 0.05}
        for name, seconds in (("stream, one by one", 4.0), ("s5cmd, as the original", 3.5), ("wire", 1.2)):
            told = {"part": "recovery", "scenario": "1 to 2, 1 GiB of state", "seconds": seconds, "phases": phases}
            recorder.sample(sample(name, number, seconds, **told))
        for at in (1.0, 2.0):
            recorder.sample(sample("wire", 0, at, part="growth", scenario="GiB", at=at))
            more = {"part": "neighbour", "scenario": "limit", "at": 25 * at, "phases": {"kept": 0.7}}
            recorder.sample(sample("wire", 0, at, **more))
    recorder.skipped(Skipped("spark", "S3A", "Spark", "hadoop-aws is not installed"))
    assert report.main([str(path)]) == 0
    text = (tmp_path / "REPORT.md").read_text()
    assert "| **wire** | 0.80 (0.80-0.80) | 2.50x |" in text
    assert "s3fs failed: 000001.sst has wrong bytes" in text
    assert "| download of 64 MiB files over HTTP, against s5cmd | ≥ 2.00x | 2.50x | met |" in text
    assert "| scale-out 1 to 2, against s5cmd that fetches everything | ≥ 3.50x | 2.92x | not met: 17 % short |" in text
    assert "hadoop-aws is not installed" in text
    for name in ("recovery", "copying", "growth", "neighbour"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_no_results_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(tmp_path / "none.jsonl")]) == 1
    assert "no results" in capsys.readouterr().out


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        suite.main(["--only", "copyin"])
    assert "no such part: copyin" in capsys.readouterr().err


def test_objects_are_told_from_each_other(tmp_path: Path) -> None:
    objects = make_objects(tmp_path, Shape(3, 3_000_000))
    directory = tmp_path / "3x3000000"
    assert wrong_files(directory, objects) is None
    first, second = (directory / each.name for each in objects[:2])
    keep = first.read_bytes()
    first.write_bytes(second.read_bytes())
    assert wrong_files(directory, objects) == "000000.sst has wrong bytes"
    first.write_bytes(keep[:-1])
    assert wrong_files(directory, objects) == "000000.sst has 2999999 bytes instead of 3000000"
    first.unlink()
    assert wrong_files(directory, [Object("p/000000.sst", 3, 0)]) == "000000.sst is missing"


def test_a_childs_whole_tree_is_measured(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time; data = b'x' * (60 << 20); "
        "subprocess.run([sys.executable, '-c', 'for _ in range(6_000_000): pass']); time.sleep(0.1); "
        "print('noise'); print('{\"seconds\": 1.5}')"
    )
    usage = run([sys.executable, "-c", code], cpu=min(os.sched_getaffinity(0)), env=os.environ)
    assert usage.exit == 0, usage.tail
    assert usage.said == {"seconds": 1.5}
    assert usage.peak > 60 << 20
    assert usage.user > 0.05


def test_a_child_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    code = (
        "import subprocess, sys; child = subprocess.Popen(['sleep', '60']); "
        "open(sys.argv[1], 'w').write(str(child.pid)); child.wait()"
    )
    usage = run([sys.executable, "-c", code, str(mark)], cpu=None, env=os.environ, timeout=1.5)
    assert usage.exit == -9
    deadline = time.monotonic() + 5
    while Path(f"/proc/{mark.read_text()}/cmdline").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    left = Path(f"/proc/{mark.read_text()}/stat")
    assert not left.exists() or left.read_text().split()[2] == "Z"


def test_the_memory_limit_holds() -> None:
    code = "data = bytearray(200 << 20); data[::4096] = b'x' * len(data[::4096]); print('{}')"
    with limited(100 << 20) as memory:
        usage = run([sys.executable, "-c", code], cpu=None, env=os.environ, memory=memory)
        fits = run([sys.executable, "-c", "print('{}')"], cpu=None, env=os.environ, memory=memory)
    assert usage.exit != 0
    assert fits.exit == 0, fits.tail


def test_reuse_reads_no_data(tmp_path):
    found = restore_files(tmp_path, 1 << 20, 3)
    assert (found["bytes_moved"], found["methods"]) == (0, {"hard-link": 3})
    # Modules that are imported on the way are read; state is not.
    assert restore_files(tmp_path / "again", 4 << 20, 3)["bytes_read"] < 1 << 20
