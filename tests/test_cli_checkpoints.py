"""``statelift inspect`` and ``statelift restore`` against real state on the real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from statelift.backends.checksums import crc64nvme
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.checkpoint.metadata import CheckpointMetadata
from statelift.transfer.checkpoint.store import CheckpointStore
from statelift.transfer.cli import main
from statelift.transfer.file_systems import FileSystems
from statelift.transfer.handles import InMemoryHandle, KeyedStateHandle, KeyGroupRange, RelativeFileHandle, StateFile
from statelift.transfer.keyed.database import KeyedState
from statelift.transfer.uploader import StateUploader

from .servers.proxy import slow_proxy

ROOT = Path(__file__).parent.parent
MOST = 8


@pytest.fixture(scope="module")
def written(s3, tmp_path_factory) -> tuple[str, dict[str, bytes]]:
    """(base of a checkpoint 1 of one subtask, what its state holds)."""
    configuration = Configuration(s3.options, environ={})
    base = f"s3://state/{tmp_path_factory.mktemp('cli').name}"
    values = {f"key-{index}": os.urandom(100) for index in range(3000)}
    location = CheckpointLocation(base, 1)
    directory = tmp_path_factory.mktemp("db") / "db"
    with KeyedState.open(directory, KeyGroupRange(0, MOST - 1), MOST) as state, FileSystems(configuration) as systems:
        for key, value in values.items():
            state.put(key, value)
        handle = state.snapshot(location, StateUploader(systems), CloseableRegistry())
    with CheckpointStore(configuration) as store:
        metadata = CheckpointMetadata(1, MOST, 1, (handle,), created=1.7e9, properties={"job": "test"})
        store.write(location, metadata)
    return base, values


@pytest.fixture
def run(s3, monkeypatch, capsys):
    """Runs a command in this process: (exit code, stdout, stderr)."""
    for key, name in {"endpoint": s3.endpoint, "access-key": s3.access_key, "secret-key": s3.secret_key}.items():
        monkeypatch.setenv(f"STATELIFT_S3_{key.upper().replace('-', '_')}", name)

    def call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


@pytest.fixture
def metadata_file(s3, written, bucket) -> Path:
    """The ``_metadata`` of a copy of the checkpoint's own directory, to be damaged."""
    base, _ = written
    data = (s3.root / base.removeprefix("s3://") / "chk-1" / "_metadata").read_bytes()
    path = s3.root / bucket / "job" / "chk-1" / "_metadata"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def restore(checkpoint: str, into: Path, subtask: int = 0, parallelism: int = 1) -> list[object]:
    return ["restore", checkpoint, "--subtask", subtask, "--parallelism", parallelism, "--into", into]


# ---------------------------------------------------------------- inspect


def test_inspect_shows_what_there_is(run, written) -> None:
    base, _ = written
    code, out, err = run("inspect", f"{base}/chk-1")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"checkpoint   {base}/chk-1"
    assert lines[1] == "created      2023-11-14 22:13:20 UTC, incremental"
    assert lines[2] == "parallelism  1 (at most 8)"
    assert "job          test" in lines
    assert any(line.split()[:2] == ["0", "0-7"] for line in lines)
    assert not [line for line in lines if line != line.rstrip()]


def test_inspect_json_adds_up(run, written) -> None:
    base, _ = written
    code, out, _ = run("inspect", f"{base}/chk-1/_metadata", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["checkpoint"], found["parallelism"], found["max_parallelism"]) == (f"{base}/chk-1", 1, MOST)
    [subtask] = found["subtasks"]
    assert sum(each["bytes"] for each in subtask["files"]) == subtask["bytes"] == found["bytes"]
    assert sum(each["files"] for each in found["places"].values()) == found["files"] == len(subtask["files"])
    assert {"shared", "inline"} <= set(found["places"])


def test_a_file_that_subtasks_share_counts_once(run, tmp_path) -> None:
    shared = StateFile("000001.sst", RelativeFileHandle("shared", "x", 1000, 1))
    own = StateFile("CURRENT", InMemoryHandle(b"12345"))
    states = tuple(KeyedStateHandle(KeyGroupRange(4 * i, 4 * i + 3), 8, "b", 2, (shared,), (own,)) for i in range(2))
    with CheckpointStore(Configuration(environ={})) as store:
        store.write(CheckpointLocation(f"{tmp_path}/job", 2), CheckpointMetadata(2, 8, 2, states))
    found = json.loads(run("inspect", f"{tmp_path}/job/chk-2", "--json")[1])
    assert (found["bytes"], found["files"]) == (1010, 3)
    assert [each["bytes"] for each in found["subtasks"]] == [1005, 1005]
    assert "size         0.99 KiB in 3 files" in run("inspect", f"{tmp_path}/job/chk-2")[1]


def test_inspect_files_lists_each(run, written) -> None:
    base, _ = written
    _, out, _ = run("inspect", f"{base}/chk-1", "--files")
    assert "CURRENT" in out
    assert ".sst" in out


def test_inspect_of_a_base_lists_its_checkpoints(run, written) -> None:
    base, _ = written
    assert run("inspect", base)[:2] == (0, f"{base}/chk-1\n")
    assert json.loads(run("inspect", base, "--json")[1])["checkpoints"] == [f"{base}/chk-1"]
    code, _, err = run("inspect", f"{base}/nothing")
    assert code == 1
    assert f"there is no checkpoint below {base}/nothing" in err


@pytest.mark.parametrize("words", [("inspect",), ("restore",)])
def test_a_missing_checkpoint_is_named(run, written, tmp_path, words) -> None:
    base, _ = written
    command = restore(f"{base}/chk-9", tmp_path / "x") if words == ("restore",) else ["inspect", f"{base}/chk-9"]
    code, _, err = run(*command)
    assert code == 1
    assert f"{base}/chk-9: there is no checkpoint" in err
    assert "never completed" in err
    assert not (tmp_path / "x").exists()


def _climb(data: bytes) -> bytes:
    body = data.partition(b"\n")[2].replace(b'"path": "', b'"path": "../../', 1)
    return f"statelift-checkpoint 1 {len(body)} {crc64nvme(body):016x}\n".encode() + body


DAMAGES = {
    "truncated": (lambda data: data[:-100], "instead of"),
    "empty": (lambda data: b"", "is empty"),
    "bit-flipped": (lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:], "its checksum does not match"),
    "newer": (lambda data: data.replace(b"checkpoint 1 ", b"checkpoint 2 ", 1), "has version 2"),
    "climbing": (_climb, "leads out of its directory"),
    "not metadata": (lambda data: b"PK\x03\x04" + data, "not a checkpoint's"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_metadata_is_named_and_nothing_is_restored(run, metadata_file, tmp_path, damage: str) -> None:
    change, message = DAMAGES[damage]
    metadata_file.write_bytes(change(metadata_file.read_bytes()))
    checkpoint = f"s3://{metadata_file.parts[-4]}/job/chk-1"
    for command in (["inspect", checkpoint], restore(checkpoint, tmp_path / "into" / "x")):
        code, out, err = run(*command)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert checkpoint in err
        assert message in err
    assert not (tmp_path / "into").exists()


# ---------------------------------------------------------------- restore


def test_restore_at_two_parallelisms(run, written, tmp_path) -> None:
    base, values = written
    found: dict[bytes, bytes] = {}
    for subtask in range(2):
        code, out, _ = run(*restore(f"{base}/chk-1", tmp_path / f"{subtask}", subtask, 2), "--json")
        shown = json.loads(out)
        assert (code, shown["ok"], shown["subtask"]) == (0, True, subtask)
        assert shown["key_groups"] == [4 * subtask, 4 * subtask + 3]
        assert sum(each["files"] for each in shown["methods"].values()) == shown["files"] > 0
        with KeyedState.open(tmp_path / f"{subtask}") as state:
            found.update((key, value) for _, key, value in state.items())
    assert sorted(found.values()) == sorted(values.values())
    code, out, err = run(*restore(f"{base}/chk-1", tmp_path / "one"))
    assert (code, err) == (0, "")
    assert f"key groups 0 to 7 in {tmp_path}/one: reopen" in out
    with KeyedState.open(tmp_path / "one") as state:
        assert state.count() == len(values)


@pytest.mark.parametrize(
    ("subtask", "parallelism", "message"),
    [
        (0, 9, "parallelism 9 is not between 1 and the maximum 8"),
        (0, 0, "parallelism 0 is not between 1"),
        (2, 2, "subtask 2 is not between 0 and 1"),
        (-1, 2, "subtask -1 is not between"),
    ],
)
def test_a_subtask_that_cannot_be(run, written, tmp_path, subtask: int, parallelism: int, message: str) -> None:
    code, _, err = run(*restore(f"{written[0]}/chk-1", tmp_path / "x", subtask, parallelism))
    assert code == 2
    assert message in err
    assert not (tmp_path / "x").exists()


def test_a_directory_that_holds_something_is_left_alone(run, written, tmp_path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    code, _, err = run(*restore(f"{written[0]}/chk-1", tmp_path))
    assert code == 1
    assert "restore into a new directory" in err
    assert os.listdir(tmp_path) == ["mine"]


def test_a_lost_file_of_state_is_named(run, metadata_file, tmp_path) -> None:
    checkpoint = f"s3://{metadata_file.parts[-4]}/job/chk-1"
    code, out, _ = run(*restore(checkpoint, tmp_path / "into" / "x"), "--json")
    assert code == 1
    shown = json.loads(out)
    assert {each["error"] for each in shown["errors"]} == {"SourceNotFound"}
    assert all(each["source"].startswith(f"s3://{metadata_file.parts[-4]}/job/shared/") for each in shown["errors"])
    assert not (tmp_path / "into").exists()


def test_the_command_as_a_user_runs_it(s3, written, tmp_path) -> None:
    command = [Path(sys.executable).parent / "statelift", *map(str, restore(f"{written[0]}/chk-1", tmp_path / "x"))]
    options = [word for key, value in s3.options.items() for word in ("-c", f"{key}={value}")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].split(", ")[0].endswith("files")


def test_a_signal_ends_a_restore_in_order(s3, written, tmp_path) -> None:
    into = tmp_path / "into"
    options = {**s3.options, "transfer.threads": "1"}
    with slow_proxy(s3.endpoint, rate=60_000) as endpoint:
        options["s3.endpoint"] = endpoint
        words = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        command = [
            sys.executable,
            "-m",
            "statelift.transfer.cli",
            *map(str, restore(f"{written[0]}/chk-1", into / "x")),
        ]
        child = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        deadline = time.monotonic() + 30
        while not into.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (130, b"")
    assert err.decode().startswith("statelift: interrupted by SIGINT")
    assert not into.exists()
