"""``statelift copy`` against the real server."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from statelift.backends.checksums import crc64nvme, to_base64
from statelift.transfer.cli import main

from .contract.places import BucketPlace, make_bytes
from .servers.disks import read_only_disk, small_disk
from .servers.fault import FaultServer, Rule
from .servers.fault_actions import status
from .servers.proxy import slow_proxy

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "statelift.transfer.cli"]


@pytest.fixture
def place(s3, bucket, monkeypatch) -> BucketPlace:
    """A bucket that the environment's options reach."""
    for key, name in {"endpoint": s3.endpoint, "access-key": s3.access_key, "secret-key": s3.secret_key}.items():
        monkeypatch.setenv(f"STATELIFT_S3_{key.upper().replace('-', '_')}", name)
    return BucketPlace(s3.root / bucket)


@pytest.fixture
def run(capsys):
    """Runs ``statelift copy`` in this process: (exit code, stdout, stderr)."""

    def call(*words: object) -> tuple[int, str, str]:
        code = main(["copy", *map(str, words)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir())


# ---------------------------------------------------------------- one file


def test_down_and_up(run, place, tmp_path) -> None:
    data = make_bytes(300_000)
    uri = place.put("dir/a b+é.sst", data)
    code, out, err = run(uri, tmp_path / "x")
    assert (code, err) == (0, "")
    assert out.startswith("1 file, 293 KiB in ")
    assert (tmp_path / "x").read_bytes() == data
    code, out, _ = run("-q", tmp_path / "x", place.uri("up/y"))
    assert (code, out, place.get("up/y")) == (0, "", data)


def test_into_a_directory(run, place, tmp_path) -> None:
    uri = place.put("dir/name", b"data")
    (tmp_path / "existing").mkdir()
    for destination in (tmp_path / "existing", f"{tmp_path}/new/"):
        assert run(uri, destination)[0] == 0
        assert (Path(destination) / "name").read_bytes() == b"data"
    assert run(tmp_path / "new" / "name", f"s3://{place.directory.name}")[0] == 0
    assert place.get("name") == b"data"


def test_json_is_one_document_of_totals(run, place, tmp_path) -> None:
    code, out, err = run(place.put("a", b"12345"), tmp_path / "a", "--json", "--backend", "stream")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found.pop("seconds") > 0
    totals = {"ok": True, "requests": 1, "files": 1, "bytes": 5, "errors": []}
    assert found == {**totals, "methods": {"stream": {"files": 1, "bytes": 5}}}


def test_a_directory_needs_recursive(run, place, tmp_path) -> None:
    for source in (tmp_path, f"s3://{place.directory.name}/", f"s3://{place.directory.name}", place.uri("dir/")):
        code, _, err = run(source, tmp_path / "x")
        assert (code, err) == (2, f"statelift: {source} is a directory (add --recursive)\n")


# ---------------------------------------------------------------- trees


def test_a_tree_down_and_up(run, place, tmp_path) -> None:
    wanted = {"a": b"1", "b/c": b"22", "b/d e/f": b"", "b/g": make_bytes(5000)}
    for name, data in wanted.items():
        place.put(f"p/{name}", data)
    place.put("pq", b"not below p/")
    for source in (place.uri("p"), place.uri("p/")):
        code, out, _ = run("-r", source, tmp_path / "down", "--json")
        assert (code, json.loads(out)["files"]) == (0, 4)
    assert {name: (tmp_path / "down" / name).read_bytes() for name in files(tmp_path / "down")} == wanted
    assert run("-r", tmp_path / "down", place.uri("again"))[0] == 0
    assert {name: place.get(f"again/{name}") for name in wanted} == wanted
    assert run("-r", tmp_path / "down", tmp_path / "beside")[0] == 0
    assert files(tmp_path / "beside") == sorted(wanted)


def test_markers_of_directories_are_no_files(moto_s3, moto_configuration, moto_bucket, run, tmp_path) -> None:
    from statelift.transfer.objects import Objects

    with Objects(moto_configuration) as objects:
        for name in ("p/", "p/dir/", "p/dir/a"):
            objects.write(f"s3://{moto_bucket}/{name}", b"")
    options = [word for key, value in moto_s3.options.items() for word in ("-c", f"{key}={value}")]
    assert run("-r", f"s3://{moto_bucket}/p/", tmp_path / "x", *options)[0] == 0
    assert files(tmp_path) == ["x/dir/a"]


@pytest.mark.parametrize("name", ["../out", "a/../../out", "a//b", "./a"])
def test_a_key_that_would_leave_the_directory_is_refused(
    moto_s3, moto_configuration, moto_bucket, run, tmp_path, name: str
) -> None:
    from statelift.transfer.objects import Objects

    with Objects(moto_configuration) as objects:
        objects.write(f"s3://{moto_bucket}/p/{name}", b"x")
        objects.write(f"s3://{moto_bucket}/p/good", b"x")
    options = [word for key, value in moto_s3.options.items() for word in ("-c", f"{key}={value}")]
    code, _, err = run("-r", f"s3://{moto_bucket}/p/", tmp_path / "x", *options)
    assert code == 1
    assert f"p/{name} would not lie below {tmp_path}/x" in err
    assert files(tmp_path) == []


def test_nothing_below_is_an_error(run, place, tmp_path) -> None:
    for source in (place.uri("none"), tmp_path / "none"):
        code, _, err = run("-r", source, tmp_path / "x")
        assert (code, err) == (1, f"statelift: nothing lies below {source}/ (check the name)\n")


def test_a_dangling_link_is_not_left_out(run, place, tmp_path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to("gone")
    code, _, err = run("-r", tmp_path / "tree", place.uri("up"))
    assert (code, err) == (1, f"statelift: no such file: {tmp_path}/tree/link\n")


# ---------------------------------------------------------------- requests


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_requests_of_a_file(run, place, tmp_path) -> None:
    data = make_bytes(10_000)
    uri = place.put("big", data)
    (tmp_path / "requests").write_bytes(
        lines(
            {"source": uri, "destination": f"{tmp_path}/whole", "size": 10_000, "crc64nvme": crc64nvme(data)},
            {"source": uri, "destination": f"{tmp_path}/hex", "crc64nvme": f"{crc64nvme(data):016x}", "length": None},
            {"source": uri, "destination": f"{tmp_path}/base64", "crc64nvme": to_base64(crc64nvme(data))},
            {"source": uri, "destination": f"{tmp_path}/part", "offset": 100, "length": 50, "size": 10_000},
        )
        + b"\n  \n"
    )
    code, out, _ = run("--requests", tmp_path / "requests", "--json")
    assert (code, json.loads(out)["files"]) == (0, 4)
    for name in ("whole", "hex", "base64"):
        assert (tmp_path / name).read_bytes() == data
    assert (tmp_path / "part").read_bytes() == data[100:150]


def test_requests_of_stdin_and_no_requests(place, tmp_path) -> None:
    uri = place.put("x", b"x")
    for given, count in ((lines({"source": uri, "destination": f"{tmp_path}/x"}), 1), (b"", 0)):
        command = [*COMMAND, "copy", "--requests", "-", "--json"]
        done = subprocess.run(command, input=given, capture_output=True, cwd=ROOT, timeout=60, check=False)
        assert (done.returncode, json.loads(done.stdout)["files"], done.stderr) == (0, count, b"")


GOOD = {"source": "s3://b/a", "destination": "/d/a"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff\n", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'"x"', "not a JSON object"),
        (lines({}), "source and destination missing"),
        (lines({"source": "s3://b/a"}), "destination missing"),
        (lines({**GOOD, "source": ""}), "a copy request needs a source"),
        (lines({**GOOD, "source": 1}), "source must be a text"),
        (lines({**GOOD, "sise": 1}), "unknown field 'sise' (did you mean size?)"),
        (lines({**GOOD, "size": "1"}), "size must be a whole number"),
        (lines({**GOOD, "size": 1.5}), "size must be a whole number"),
        (lines({**GOOD, "size": True}), "size must be a whole number"),
        (lines({**GOOD, "size": -1}), "negative size"),
        (lines({**GOOD, "size": 5, "offset": 4, "length": 2}), "ends beyond its 5 bytes"),
        (lines({**GOOD, "crc64nvme": "xyz"}), "crc64nvme is not a checksum"),
        (lines({**GOOD, "crc64nvme": 1 << 64}), "crc64nvme is not a checksum of 8 bytes"),
        (lines({**GOOD, "crc64nvme": -1}), "crc64nvme is not a checksum of 8 bytes"),
        (lines({**GOOD, "crc32c": []}), "crc32c must be"),
        (lines(GOOD), "/d/a is the destination of line 1 too"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_copied(run, tmp_path, line: bytes, message: str) -> None:
    path = tmp_path / "requests"
    path.write_bytes(lines(GOOD) + line)
    code, out, err = run("--requests", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"statelift: {path} line 2: ")
    assert message in err


def test_a_missing_file_of_requests(run, tmp_path) -> None:
    code, _, err = run("--requests", tmp_path / "none")
    assert (code, err) == (2, f"statelift: cannot read {tmp_path}/none: No such file or directory\n")


def test_every_failed_request_is_in_the_document(run, place, tmp_path) -> None:
    good = [place.put(f"good{index}", b"x" * 100) for index in range(5)]
    bad = [place.uri(f"bad{index}") for index in range(3)]
    damaged = {"source": good[0], "destination": f"{tmp_path}/damaged", "crc64nvme": 1}
    records = [{"source": uri, "destination": f"{tmp_path}/{uri.rpartition('/')[2]}"} for uri in [*bad, *good]]
    (tmp_path / "requests").write_bytes(lines(*records, damaged))
    code, out, err = run("--requests", tmp_path / "requests", "--json")
    found = json.loads(out)
    assert code == 1
    assert (found["ok"], found["requests"], found["files"], found["bytes"], found["not_tried"]) == (False, 9, 5, 500, 0)
    failed = {each["source"]: each["error"] for each in found["errors"]}
    assert failed == {**dict.fromkeys(bad, "SourceNotFound"), good[0]: "IntegrityError"}
    assert {each["destination"] for each in found["errors"]} == {f"{tmp_path}/bad{i}" for i in range(3)} | {
        damaged["destination"]
    }
    assert err.splitlines()[0] == "statelift: 4 of 9 files failed"
    assert files(tmp_path) == [*(f"good{index}" for index in range(5)), "requests"]


# ---------------------------------------------------------------- what fails, and how it is said


def test_what_is_missing_is_named(run, place, tmp_path) -> None:
    code, _, err = run(place.uri("gone"), tmp_path / "x")
    assert (code, err) == (1, f"statelift: no such object: {place.uri('gone')}\n")
    code, _, err = run("s3://no-such-bucket-here/gone", tmp_path / "x")
    assert code == 1
    assert "s3://no-such-bucket-here/gone" in err
    code, _, err = run(tmp_path / "gone", place.uri("x"))
    assert (code, err) == (1, f"statelift: no such file: {tmp_path}/gone\n")
    assert files(tmp_path) == []
    assert place.names() == set()


@pytest.mark.parametrize("backend", ["auto", "stream"])
def test_wrong_credentials_name_the_remedy(run, place, tmp_path, backend: str) -> None:
    code, out, err = run(place.put("a", b"x"), tmp_path / "a", "-c", "s3.secret-key=canary", "--backend", backend)
    assert (code, files(tmp_path)) == (1, [])
    assert "s3.access-key" in err
    assert "canary" not in out + err


def test_no_credentials_name_the_remedy(run, tmp_path) -> None:
    code, _, err = run("s3://b/a", tmp_path / "a")
    assert (code, files(tmp_path)) == (1, [])
    assert "set s3.access-key and s3.secret-key, or AWS's own environment, or s3.anonymous" in err


def test_an_expired_token_names_the_remedy(run, place, s3, tmp_path) -> None:
    uri = place.put("a", b"x")
    with FaultServer(s3.endpoint) as server:
        server.add(Rule("*", action=status(400, "ExpiredToken"), times=None))
        code, _, err = run(uri, tmp_path / "a", "-c", f"s3.endpoint={server.endpoint}")
    assert (code, files(tmp_path)) == (1, [])
    assert "renew them" in err


def test_a_refused_connection_names_the_remedy(run, place, tmp_path) -> None:
    code, _, err = run("s3://b/a", tmp_path / "a", "-c", "s3.endpoint=http://127.0.0.1:9", "-c", "transfer.retries=0")
    assert (code, files(tmp_path)) == (1, [])
    assert "check s3.endpoint" in err


def test_a_wrong_path_of_s5cmd_names_the_remedy(run, place, tmp_path) -> None:
    uri = place.put("a", b"x")
    (tmp_path / "not-a-program").write_text("x")
    for path in (tmp_path / "missing", tmp_path / "not-a-program", tmp_path):
        code, _, err = run(uri, tmp_path / "a", "-c", f"s3.s5cmd.path={path}")
        assert code in {1, 2}
        assert str(path) in err
        assert "s5cmd" in err
        assert err.count("\n") == 1
    assert files(tmp_path) == ["not-a-program"]


def test_a_full_disk_is_said_and_left_empty(run, place, tmp_path) -> None:
    for index in range(4):
        place.put(f"p/{index}", make_bytes(1 << 20, index))
    with small_disk(tmp_path / "disk", 2 << 20) as disk:
        code, _, err = run("-r", place.uri("p"), disk / "new")
        assert code == 1
        assert "free space or choose another disk" in err
        assert all((disk / name).stat().st_size == 1 << 20 for name in files(disk))


def test_a_read_only_destination_is_said(run, place, tmp_path) -> None:
    uri = place.put("a", b"x")
    with read_only_disk(tmp_path / "disk") as disk:
        code, _, err = run(uri, disk / "new" / "a")
        assert code == 1
        assert f"cannot write {disk}/new" in err
        assert files(disk) == ["old"]


def test_many_causes_are_cut_short(run, place, tmp_path) -> None:
    place.put("x", b"")
    names = [place.uri(f"gone{index}") for index in range(14)]
    (tmp_path / "requests").write_bytes(
        lines(*({"source": name, "destination": f"{tmp_path}/{index}"} for index, name in enumerate(names)))
    )
    _, _, err = run("--requests", tmp_path / "requests")
    said = err.splitlines()
    assert len(said) == 12
    assert said[0] == "statelift: 14 of 14 files failed"
    assert said[-1] == "  and 4 more; --json prints them all"


def test_a_name_with_control_characters_stays_on_its_line(run, place, tmp_path) -> None:
    _, _, err = run(tmp_path / "a\nb\x1b[31m", place.uri("x"))
    assert err == f"statelift: no such file: {tmp_path}/a\\nb\\x1b[31m\n"


# ---------------------------------------------------------------- terminals and signals


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_on_a_terminal_and_none_in_a_pipe(place, tmp_path, terminal: bool) -> None:
    place.put("p/a", make_bytes(2 << 20))
    ours, theirs = pty.openpty() if terminal else os.pipe()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [*COMMAND, "copy", "-r", place.uri("p"), str(tmp_path / "x")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, cwd=ROOT, env=environment)
    os.close(theirs)
    out, _ = child.communicate(timeout=60)
    shown = os.read(ours, 1 << 16)
    os.close(ours)
    assert (child.returncode, out.startswith(b"1 file, 2.00 MiB")) == (0, True)
    if terminal:
        assert b"copying" in shown
        assert b"2.0/2.0 MiB" in shown
        assert shown.rstrip().endswith((b"\x1b[?25h", b"\x1b[2K"))  # the cursor is back and the bar gone
    else:
        assert shown == b""


@pytest.mark.parametrize(
    ("backend", "number"),
    [("auto", signal.SIGINT), ("stream", signal.SIGINT), ("s5cmd", signal.SIGINT), ("auto", signal.SIGTERM)],
)
def test_a_signal_ends_the_copy_in_order(place, s3, tmp_path, number: signal.Signals, backend: str) -> None:
    for index in range(3):
        place.put(f"p/{index}", make_bytes(4 << 20, index))
    into = tmp_path / "into"
    with slow_proxy(s3.endpoint, rate=1 << 20) as endpoint:
        command = [*COMMAND, "copy", "-r", place.uri("p"), str(into), "--json", "-c", f"s3.endpoint={endpoint}"]
        child = subprocess.Popen(
            [*command, "--backend", backend], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
        )
        deadline = time.monotonic() + 30
        while not into.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.5)
        started = time.monotonic()
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
    assert time.monotonic() - started < 10
    assert child.returncode == 128 + number
    assert err.decode().splitlines() == [f"statelift: interrupted by {number.name}"]
    assert not json.loads(out)["ok"]
    assert not into.exists()
