"""The demo as a user starts it: in a process of its own, with a cluster of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from statelift.backends.errors import BackendUnavailable
from statelift.transfer.demo.run import run

pytestmark = pytest.mark.spark

_COMMAND = "import sys; from statelift.transfer.cli import main; sys.exit(main(['demo', *sys.argv[1:]]))"
_SHORTER = """
import sys
from pathlib import Path
from statelift.transfer.demo.run import all_methods, run
sys.exit(run(2 << 20, Path(sys.argv[1]), methods=all_methods()[3:]))
"""


def _start(program: str, mark: str, tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    for name in ("tmp", "cwd"):
        (tmp_path / name).mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "STATELIFT_TEST_MARK": mark},
        cwd=tmp_path / "cwd",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _marked(mark: str) -> list[int]:
    """Processes that were started by ours, however indirectly."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("STATELIFT_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def _all_gone(mark: str, timeout: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout
    while _marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not _marked(mark)


def _left(tmp_path: Path) -> list[str]:
    """Files left in the temporary and the working directory; the JVM keeps its own note of each JVM."""
    both = [*(tmp_path / "tmp").iterdir(), *(tmp_path / "cwd").iterdir()]
    return [each.name for each in both if not each.name.startswith("hsperfdata_")]


def test_the_demo_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    mark, results = uuid.uuid4().hex, tmp_path / "results.json"
    with _start(_SHORTER, mark, tmp_path, str(results)) as demo:
        printed, _ = demo.communicate(timeout=170)
    assert demo.returncode == 0, printed
    assert printed.count(" keys are right") >= 2
    assert "| s5cmd " in printed
    assert "WARN" not in printed
    rows = json.loads(results.read_text())["rows"]
    assert rows[0]["label"] == "s5cmd"
    assert all(row["bytes"] > 0 and row["seconds"] > 0 for row in rows)
    assert _all_gone(mark)
    assert _left(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    with _start(_COMMAND, mark, tmp_path, "--size", "16m") as demo:
        assert demo.stdout is not None
        # By now Spark, its executors and the S3 server run, and the second job is on its way.
        line = next(line for line in demo.stdout if "checkpoint 1" in line)
        assert "uploaded" in line
        demo.send_signal(number)
        printed, _ = demo.communicate(timeout=120)
    assert demo.returncode != 0
    assert "Traceback" not in printed
    assert _all_gone(mark)
    assert _left(tmp_path) == []


def test_without_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(BackendUnavailable, match="install Java 17"):
        run(1 << 20)
