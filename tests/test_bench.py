"""The benchmark's own arithmetic and machinery; no timing decides anything here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from statelift.bench import copying, goals, job_state, report, reuse, suite, system_calls
from statelift.bench.contenders import CONTENDERS, Contender, Plan
from statelift.bench.data import Object, Shape, make_objects, wrong_files
from statelift.bench.light_server import start_light
from statelift.bench.light_store import OPEN_AT_MOST, Store
from statelift.bench.measure import run
from statelift.bench.memory_limit import limited
from statelift.bench.reuse import restore_files
from statelift.bench.rounds import Spread, order, ratios, spread
from statelift.bench.sample import Recorder, Sample, Silent, Skipped, read
from statelift.bench.servers import BUCKET, Servers
from statelift.bench.settings import Settings
from statelift.bench.trial import Conditions, interleave, try_once
from statelift.transfer.handles import KeyGroupRange

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


def test_reuse_is_reported_beside_copies(tmp_path, monkeypatch):
    monkeypatch.setattr(reuse, "SIZES", (64 << 10, 1 << 20))
    recorder = Recorder(tmp_path / "samples.jsonl", {"run": "1", "machine": MACHINE})
    reuse.measure(Settings(tmp_path, rounds=1), recorder, Servers(tmp_path, None))
    found = read(tmp_path / "samples.jsonl")
    assert [(each.contender, each.at, each.failed) for each in found.samples] == [
        (way, size, None) for size in (65536.0, 1048576.0) for way in ("reuse", "copy")
    ]
    assert report.main([str(tmp_path / "samples.jsonl")]) == 0
    text = (tmp_path / "REPORT.md").read_text()
    assert "## Restore by reuse" in text
    assert "| 1 MiB |" in text
    assert "| restore by reuse, read from files | ≤ 0.10 MiB | 0.00 MiB | met |" in text


def test_few_files_are_open_at_once(tmp_path: Path) -> None:
    for number in range(OPEN_AT_MOST + 50):
        (tmp_path / f"{number}").write_bytes(b"x" * number)
    store = Store(tmp_path, mapped=False)
    before = len(os.listdir("/proc/self/fd"))
    first = store.find("/0")
    for number in range(OPEN_AT_MOST + 50):
        found = store.find(f"/{number}")
        assert found is not None
        assert found.size == number
    # The first one was displaced, yet stays open for the request that still sends it.
    assert first is not None
    assert os.fstat(first.fd).st_size == 0
    assert len(os.listdir("/proc/self/fd")) - before <= OPEN_AT_MOST + 2
    assert store.find("/none") is None


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_server_counts_what_a_contender_received(tmp_path: Path, scheme: str) -> None:
    shape = Shape(3, 1 << 20)
    with Servers(tmp_path / "s3", None).serving(scheme) as server:
        plan = Plan("download", server, server.objects(shape), tmp_path / "target", tmp_path, prefix="-")
        found = try_once(CONTENDERS["wire"], plan, Sample("copying", "s", "wire", 0), Conditions(None))
        noise = Contender("noise", lambda _plan: [sys.executable, "-c", _NOISE, server.endpoint])
        nothing = try_once(noise, plan, Sample("copying", "s", "noise", 0), Conditions(None))
    assert found.failed is None
    assert shape.bytes < found.received < shape.bytes * 1.05
    assert 0 < found.sent < 20_000
    # Another server's bytes go over the same loopback device.
    assert nothing.received == 0
    assert found.phases["cpu"] <= found.cpu + 0.01
    assert 5 << 20 < found.phases["memory_before"] <= found.peak


_NOISE = """
import socket
here, there = socket.socket(), socket.create_server(("127.0.0.1", 0))
here.connect(there.getsockname())
here.sendall(bytes(100_000))
"""


def test_the_slow_link_holds_back_uploads_too(tmp_path: Path) -> None:
    import http.client

    (tmp_path / BUCKET).mkdir()
    with start_light(tmp_path, rate=1e6) as light:
        started = time.monotonic()
        client = http.client.HTTPConnection(light.endpoint.removeprefix("http://"), timeout=20)
        client.request("PUT", f"/{BUCKET}/key", bytes(400_000))
        assert client.getresponse().status == 200
        client.close()
        assert time.monotonic() - started > 0.3
        assert light.traffic().sent > 400_000


def test_system_calls_are_read_off_strace() -> None:
    lines = ["% time     seconds  usecs/call     calls    errors syscall", "-- -- -- -- -- --"]
    lines += ["100.00    0.105060           9     11305       304 total"]
    assert system_calls.total_of("\n".join(lines)) == 11305
    assert system_calls.total_of("100.00    0.000060           9        12           total\n") == 12
    assert system_calls.total_of("strace: attach: ptrace(PTRACE_SEIZE, 1): Operation not permitted") is None


def test_system_calls_are_counted_in_a_run_of_their_own(tmp_path: Path) -> None:
    if system_calls.missing():
        pytest.skip("strace is not installed")
    with Servers(tmp_path / "s3", None).serving() as server:
        objects = server.objects(Shape(1, 1000))
        plan = Plan("download", server, objects, tmp_path / "target", tmp_path, prefix="-")
        found = system_calls.count(CONTENDERS["wire"], plan, Sample("system calls", "s", "wire", 0), None)
    if found.failed and "not permitted" in found.failed:
        pytest.skip("nothing may be traced here")
    assert (found.failed, found.wall) == (None, 0.0)
    assert 100 < found.system_calls < 100_000


def test_the_matrix_has_every_row(tmp_path: Path) -> None:
    names = [scenario.name for scenario in copying.matrix(Settings.long(tmp_path))]
    assert len(names) == len(set(names))
    for direction in ("download", "upload"):
        for shape in ("16 x 64 MiB", "2000 x 64 KiB", "1 x 2 GiB"):
            for scheme in ("http", "https"):
                assert f"{direction} {shape}, {scheme}" in names
    for scheme in ("http", "https"):
        assert f"download 16 x 64 MiB, {scheme}, 30 ms to the first byte and 100 MB/s a connection" in names
        assert f"server-side 16 x 64 MiB, {scheme}, rclone serve s3" in names
    limited_ones = [scenario for scenario in copying.matrix(Settings.long(tmp_path)) if scenario.memory]
    assert set(copying.PEERS) <= {name for scenario in limited_ones for name in scenario.contenders}


def test_a_shorter_run_is_a_part_of_the_longer(tmp_path: Path) -> None:
    usual = {scenario.name for scenario in copying.matrix(Settings(tmp_path))}
    assert usual < {scenario.name for scenario in copying.matrix(Settings.long(tmp_path))}
    quick = copying.matrix(Settings.short(tmp_path))
    assert quick
    assert all(scenario.main for scenario in quick)


def test_the_quick_run_has_what_the_goals_of_copying_need(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    recorder = Recorder(path, {"run": "1", "machine": MACHINE})
    told = {"cpu": 0.2, "memory_before": 20 << 20}
    for scenario in copying.matrix(Settings.short(tmp_path)):
        for name in scenario.contenders:
            recorder.sample(sample(name, 0, 1.0, scenario=scenario.name, phases=told if name == "wire" else {}))
    rows = [goal.row(read(path)) for goal in goals.GOALS]
    missing = [row[0] for row in rows if row[-1] == "not measured"]
    assert not [work for work in missing if "download" in work or "upload" in work or "C loop" in work]
    inside = next(row for row in rows if "inside" in row[0])
    # 0.2 s of the C loop's 0.5 s.
    assert inside[2] == "0.40x"
    assert next(row for row in rows if "adds" in row[0])[2:] == ["10.0 MiB", "met"]


def test_a_jobs_state_is_built_once(tmp_path: Path) -> None:
    bucket, size = tmp_path / "bucket", 64 * job_state.VALUE
    first = job_state.build(bucket, tmp_path, size=size, parallelism=1)
    assert job_state.build(bucket, tmp_path, size=size, parallelism=1) is first
    assert first.expected(KeyGroupRange(0, 127)).rows == 64


def test_executors_are_pinned_to_one_cpu_each() -> None:
    from types import SimpleNamespace

    from statelift.bench.spark_session import pin_executors

    def start(*words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", *words], stdout=-1
        )

    children = [start("CoarseGrainedExecutorBackend"), start("CoarseGrainedExecutorBackend"), start("worker")]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        gateway = SimpleNamespace(proc=SimpleNamespace(pid=os.getpid()))
        assert pin_executors(SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway))) == 2
        first, second, other = (os.sched_getaffinity(child.pid) for child in children)
        assert len(first) == len(second) == 1
        assert other == os.sched_getaffinity(0)
        assert first != second or len(other) == 1
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_some_contenders_take_part_in_few_rounds(tmp_path: Path) -> None:
    ran: list[tuple[int, str]] = []

    def one(name: str, number: int) -> Sample:
        ran.append((number, name))
        return sample(name, number, 1.0, failed="it does not work" if name == "broken" else None)

    interleave({"wire": 3, "sdk": 1, "broken": 3}, one, Silent())
    assert [sum(each == name for _, each in ran) for name in ("wire", "sdk", "broken")] == [3, 1, 2]
    assert [number for number, name in ran if name == "sdk"] == [0]
