"""``statelift savepoint`` against real state on the real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from statelift.backends.options import Configuration
from statelift.transfer.cli import main
from statelift.transfer.demo.s3_server import S3Server

from .servers.proxy import slow_proxy
from .test_savepoint import VALUES, rows_of, write_checkpoint

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parent.parent


@pytest.fixture
def own(configuration: Configuration) -> Configuration:
    return configuration.with_arguments({"state.inline-threshold": "2kb"})


@pytest.fixture
def checkpoint(own: Configuration, bucket: str, tmp_path: Path) -> str:
    return write_checkpoint(f"s3://{bucket}/job", own, tmp_path / "scratch")


def environment(s3: S3Server) -> dict[str, str]:
    names = {"endpoint": s3.endpoint, "access-key": s3.access_key, "secret-key": s3.secret_key}
    return {f"STATELIFT_S3_{key.upper().replace('-', '_')}": value for key, value in names.items()}


@pytest.fixture
def run(s3: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    for name, value in environment(s3).items():
        monkeypatch.setenv(name, value)

    def call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


def test_the_default_is_native_and_the_store_copies_by_itself(run: Run, checkpoint: str, bucket: str) -> None:
    code, out, _ = run("savepoint", checkpoint, f"s3://{bucket}/sp", "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["ok"], document["type"], document["checkpoint_id"]) == (True, "native", 7)
    assert document["savepoint"] == f"s3://{bucket}/sp"
    assert set(document["methods"]) == {"server-side"}
    assert document["bytes_moved"] == 0


def test_a_canonical_one_is_restored_by_the_command(
    run: Run, checkpoint: str, own: Configuration, bucket: str, tmp_path: Path
) -> None:
    target = f"s3://{bucket}/savepoints/rows"
    code, out, _ = run("savepoint", checkpoint, target, "--type", "canonical", "--scratch", tmp_path / "room")
    assert code == 0
    assert out.splitlines()[-1] == f"canonical savepoint {target} of {checkpoint}"
    assert not (tmp_path / "room").exists()
    code, out, _ = run("inspect", target, "--json")
    assert (code, json.loads(out)["kind"]) == (0, "savepoint")
    words = ["restore", target, "--subtask", 0, "--parallelism", 3, "--into", tmp_path / "part", "--json"]
    code, out, _ = run(*words)
    assert (code, json.loads(out)["method"]) == (0, "rows")
    assert rows_of(target, own, tmp_path / "into", parallelism=3) == VALUES


def test_failures_have_the_usual_codes(run: Run, checkpoint: str, bucket: str, s3_root: Path) -> None:
    target = f"s3://{bucket}/sp"
    assert run("savepoint", checkpoint, target, "-q") == (0, "", "")
    code, _, err = run("savepoint", checkpoint, target)
    assert code == 1
    assert "there is a snapshot already" in err
    code, out, _ = run("savepoint", f"s3://{bucket}/none/chk-1", f"s3://{bucket}/sp2", "--json")
    assert (code, json.loads(out)["errors"][0]["error"]) == (1, "CheckpointNotFound")
    assert run("savepoint", checkpoint, f"s3://{bucket}/sp2", "--type", "binary")[0] == 2
    assert run("savepoint", checkpoint)[0] == 2
    assert not (s3_root / bucket / "sp2").exists()


def test_a_signal_ends_it_and_leaves_nothing(checkpoint: str, s3: S3Server, tmp_path: Path) -> None:
    with slow_proxy(s3.endpoint, rate=60_000) as endpoint:
        words = ["savepoint", checkpoint, str(tmp_path / "new" / "sp"), "--json", "-c", f"s3.endpoint={endpoint}"]
        code = "import sys; from statelift.transfer.cli import main; sys.exit(main(sys.argv[1:]))"
        with subprocess.Popen(
            [sys.executable, "-c", code, *words],
            env=environment(s3) | {"PATH": "/usr/bin:/bin", "AWS_EC2_METADATA_DISABLED": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            ends = time.monotonic() + 30
            while not (tmp_path / "new").exists() and time.monotonic() < ends:
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
    assert process.returncode == 143, err
    assert json.loads(out)["ok"] is False
    assert not (tmp_path / "new").exists()
