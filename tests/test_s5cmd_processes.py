"""The child processes: how they are found, fed, watched, limited and ended.

What the real s5cmd cannot be made to do on cue, a small program in its place does.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import (
    BackendError,
    BackendUnavailable,
    CopyCancelled,
    CopyFailed,
    IntegrityError,
    StalledTransfer,
)
from statelift.backends.options import Configuration
from statelift.backends.report import CopyReport
from statelift.backends.request import CopyRequest
from statelift.s5cmd_integration import S5cmdFileSystem
from statelift.s5cmd_integration import child as child_module
from statelift.s5cmd_integration.child import start_child
from statelift.s5cmd_integration.cpulimit import CpuLimit, DutyCycle, ProgramLimit, limit_cpu
from statelift.s5cmd_integration.process import Process
from statelift.s5cmd_integration.program import find_program
from statelift.transfer.demo.s3_server import S3Server

from .contract.suite import ENDS_WITHIN, children, wait_until
from .servers.proxy import SlowProxy

MIB = 1 << 20
REAL = find_program(None)

#: Reads lines as s5cmd does, and has what its body needs.
_HEAD = """#!{python} -SE
import json, os, shlex, signal, sys, time
if "version" in sys.argv:
    print("v2.3.0-fake")
    sys.exit()
def lines():
    for line in iter(sys.stdin.readline, ""):
        *_, source, destination = shlex.split(line)
        yield source, destination
def say(stream=sys.stdout, **what):
    print(json.dumps({{"operation": "cp", **what}}), file=stream, flush=True)
def succeed(source, destination, size=5):
    say(success=True, source=source, destination=destination, object={{"type": "file", "size": size}})
def copy(source, destination):
    with open(destination, "w") as file:
        file.write("bytes")
"""


@pytest.fixture
def fake(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a program in s5cmd's place from the body of its main loop."""

    def make(body: str) -> Path:
        path = tmp_path / "s5cmd-fake"
        path.write_text(_HEAD.format(python=sys.executable) + textwrap.dedent(body))
        path.chmod(0o755)
        return path

    return make


def file_system(path: Path | str, options: dict[str, object] | None = None) -> S5cmdFileSystem:
    base = {"s3.endpoint": "http://127.0.0.1:9", "s3.access-key": "the-key", "s3.secret-key": "the-secret"}
    limits = {"s3.s5cmd.path": str(path), "transfer.retries": 0, "transfer.verify": False}
    return S5cmdFileSystem(Configuration({**base, **limits, **(options or {})}, environ={}))


def requests_to(directory: Path, count: int, size: int | None = 5) -> list[CopyRequest]:
    return [CopyRequest(f"s3://state/{n}", f"{directory}/to/{n}", size=size) for n in range(count)]


def copy(backend: S5cmdFileSystem, requests: list[CopyRequest], **how: object) -> CopyReport:
    return backend.copy_files(requests, CloseableRegistry(), **how)  # type: ignore[arg-type]


def copy_fails(backend: S5cmdFileSystem, requests: list[CopyRequest], **how: object) -> CopyFailed:
    with pytest.raises(CopyFailed) as caught:
        copy(backend, requests, **how)
    return caught.value


# Finding the program.


def test_a_path_that_is_nothing_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "directory").mkdir()
    for name in ("nothing", "file", "directory"):
        with pytest.raises(BackendUnavailable) as caught:
            file_system(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert caught.value.remedy


@pytest.mark.parametrize(
    "body",
    [
        "#!/bin/sh\necho hello",
        "#!/bin/sh\nexit 1",
        "#!/no/such/interpreter",
        "\x7fELF nonsense",
        "#!/bin/sh\necho v1.4.0",
    ],
)
def test_a_program_that_is_no_s5cmd_is_unavailable(tmp_path: Path, body: str) -> None:
    (tmp_path / "s5cmd").write_text(body)
    (tmp_path / "s5cmd").chmod(0o755)
    with pytest.raises(BackendUnavailable) as caught:
        file_system(tmp_path / "s5cmd")
    assert str(tmp_path / "s5cmd") in str(caught.value)


def test_flags_that_s5cmd_refuses_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "s5cmd").write_text(f'#!/bin/sh\necho "Incorrect Usage"; exec {REAL} --no-such-flag "$@"')
    (tmp_path / "s5cmd").chmod(0o755)
    with pytest.raises(BackendUnavailable, match="Incorrect Usage"):
        file_system(tmp_path / "s5cmd")


def test_the_launcher_is_replaced_by_the_binary_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Path(sysconfig.get_path("scripts")) / "s5cmd"
    assert launcher.read_bytes().startswith(b"#!")
    assert Path(REAL).read_bytes().startswith(b"\x7fELF")
    assert find_program(str(launcher)) == REAL
    assert find_program("s5cmd") == REAL
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_program("s5cmd") == REAL
    with pytest.raises(BackendUnavailable, match="other-s5cmd"):
        find_program("other-s5cmd")


def test_a_launcher_without_its_binary_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = tmp_path / "bin" / "s5cmd"
    launcher.parent.mkdir()
    shutil.copy(Path(sysconfig.get_path("scripts")) / "s5cmd", launcher)
    monkeypatch.setattr("statelift.s5cmd_integration.program._bundled", lambda: iter(()))
    with pytest.raises(BackendUnavailable, match="site-packages/s5cmd/bin/s5cmd"):
        find_program(str(launcher))


def test_a_program_that_vanished_fails_the_batch(fake: Callable[[str], Path], tmp_path: Path) -> None:
    path = fake("")
    backend = file_system(path)
    path.unlink()
    failure = copy_fails(backend, requests_to(tmp_path, 2), fail_fast=False)
    assert {error.request for error in failure.errors} == set(requests_to(tmp_path, 2))


# Feeding.


@pytest.mark.parametrize(("limit", "starts"), [(1, 10), (7, 2), (10, 1), (14, 1)])
def test_a_process_gets_no_more_files_than_its_share(
    fake: Callable[[str], Path], tmp_path: Path, limit: int, starts: int
) -> None:
    path = fake(f"""
        count = 0
        for source, destination in lines():
            copy(source, destination)
            succeed(source, destination)
            count += 1
        open("{tmp_path}/" + str(os.getpid()), "w").write(str(count))
    """)
    report = copy(file_system(path, {"s3.s5cmd.batch.max-files": limit}), requests_to(tmp_path, 10))
    assert len(report.files) == 10
    counts = [int(each.read_text()) for each in tmp_path.iterdir() if each.name.isdigit()]
    assert len(counts) == starts
    assert sum(counts) == 10
    assert max(counts) <= limit


def test_a_slow_file_holds_back_no_other_batch(fake: Callable[[str], Path], tmp_path: Path) -> None:
    path = fake("""
        for source, destination in lines():
            if source.endswith("/0"):
                slow = source, destination
                continue
            copy(source, destination)
            succeed(source, destination)
        if "slow" in dir():
            while len(os.listdir(os.path.dirname(os.path.dirname(slow[1])))) < 20:
                time.sleep(0.01)
            copy(*slow)
            succeed(*slow)
    """)
    backend = file_system(path, {"s3.s5cmd.batch.max-files": 3})
    report = copy(backend, requests_to(tmp_path, 20))
    assert report.files[-1].request.source == "s3://state/0"
    assert len(report.files) == 20


def test_credentials_are_in_the_environment_and_nowhere_else(fake: Callable[[str], Path], tmp_path: Path) -> None:
    path = fake(f"""
        with open("{tmp_path}/seen", "w") as file:
            json.dump([sys.argv, dict(os.environ)], file)
        for source, destination in lines():
            copy(source, destination)
            succeed(source, destination)
    """)
    copy(file_system(path), requests_to(tmp_path, 1))
    import json

    argv, environment = json.loads((tmp_path / "seen").read_text())
    assert environment["AWS_SECRET_ACCESS_KEY"] == "the-secret"
    assert "the-secret" not in " ".join(argv)


# What it says, and what it leaves unsaid.


def test_an_exit_code_of_zero_proves_nothing(fake: Callable[[str], Path], tmp_path: Path) -> None:
    path = fake("""
        for number, (source, destination) in enumerate(lines()):
            copy(source, destination)
            if number % 2:
                succeed(source, destination)
    """)
    failure = copy_fails(file_system(path), requests_to(tmp_path, 6))
    assert len(failure.errors) == len(failure.done) == 3
    assert all(isinstance(error, BackendError) and "exit code 0" in str(error) for error in failure.errors)
    assert {each.name for each in (tmp_path / "to").iterdir()} == {
        Path(f.request.destination).name for f in failure.done
    }


def test_lost_lines_are_tried_again(fake: Callable[[str], Path], tmp_path: Path) -> None:
    path = fake(f"""
        first = not os.path.exists("{tmp_path}/was-here")
        open("{tmp_path}/was-here", "w")
        for source, destination in lines():
            if not first:
                copy(source, destination)
                succeed(source, destination)
    """)
    backend = file_system(path, {"transfer.retries": 3})
    assert len(copy(backend, requests_to(tmp_path, 6)).files) == 6


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("succeed(source, destination)", IntegrityError),
        ("copy(source, destination); succeed(source, destination, 6)", None),
        ("open(destination, 'w').write('four'); succeed(source, destination)", IntegrityError),
        ("os.symlink('/etc/passwd', destination); succeed(source, destination)", IntegrityError),
        ("copy(source, destination); succeed(source, destination + '1')", BackendError),
        ("copy(source, destination); say(success=2, error=1)", BackendError),
    ],
    ids=["no file", "size of the line is another", "short", "a link", "another name", "statistics"],
)
def test_a_success_that_is_none(
    fake: Callable[[str], Path], tmp_path: Path, body: str, kind: type[Exception] | None
) -> None:
    path = fake(f"""
        for source, destination in lines():
            {body}
    """)
    if kind is None:
        # The request's own size decides.
        copy(file_system(path), requests_to(tmp_path, 1))
        return
    failure = copy_fails(file_system(path), requests_to(tmp_path, 1))
    assert isinstance(failure.errors[0], kind)
    assert not list((tmp_path / "to").iterdir()) if (tmp_path / "to").exists() else True


def test_output_in_any_amount_and_shape_is_drained(fake: Callable[[str], Path], tmp_path: Path) -> None:
    path = fake("""
        for source, destination in lines():
            for stream in (sys.stdout, sys.stderr):
                stream.write("x" * 3_000_000 + "\\n" + "USAGE: \\udcff\\n".encode("utf-8", "ignore").decode() * 1000)
                stream.flush()
            copy(source, destination)
            succeed(source, destination)
    """)
    assert len(copy(file_system(path), requests_to(tmp_path, 5)).files) == 5


def test_the_last_lines_are_told_without_secrets(fake: Callable[[str], Path], tmp_path: Path) -> None:
    path = fake("""
        for source, destination in lines():
            print("panic: key=the-secret", os.environ["AWS_SECRET_ACCESS_KEY"].replace("-", "%2D"))
            sys.exit(3)
    """)
    failure = copy_fails(file_system(path), requests_to(tmp_path, 1))
    text = str(failure) + repr(failure.errors[0])
    assert "exit code 3" in text
    assert "panic: key=***" in text
    assert "secret" not in text


def test_a_killed_process_is_told_and_its_lines_tried_again(fake: Callable[[str], Path], tmp_path: Path) -> None:
    path = fake(f"""
        first = not os.path.exists("{tmp_path}/was-here")
        open("{tmp_path}/was-here", "w")
        for source, destination in lines():
            if first:
                os.kill(os.getpid(), signal.SIGKILL)
            copy(source, destination)
            succeed(source, destination)
    """)
    assert len(copy(file_system(path, {"transfer.retries": 3}), requests_to(tmp_path, 4)).files) == 4
    (tmp_path / "was-here").unlink()
    failure = copy_fails(file_system(path), requests_to(tmp_path, 1))
    assert "killed by signal 9" in str(failure)


# Ending.


def start(
    backend: S5cmdFileSystem, requests: list[CopyRequest]
) -> tuple[CloseableRegistry, threading.Thread, list[BaseException]]:
    registry, errors = CloseableRegistry(), list[BaseException]()

    def run() -> None:
        try:
            backend.copy_files(requests, registry)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return registry, thread, errors


@pytest.mark.parametrize(
    "body",
    [
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); open(destination, 'w').write('some'); time.sleep(1000)",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '1000'); time.sleep(1000)",
        "os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '1000'); sys.exit()",
        "os.close(1); os.close(2); time.sleep(1000)",
    ],
    ids=["ignores SIGTERM", "is stopped", "has a child", "leaves a child", "says nothing"],
)
def test_closing_ends_every_process_of_the_group(fake: Callable[[str], Path], tmp_path: Path, body: str) -> None:
    path = fake(f"""
        for source, destination in lines():
            open("{tmp_path}/" + str(os.getpid()), "w")
            {body}
    """)
    before = children()
    registry, thread, errors = start(file_system(path), requests_to(tmp_path, 2))
    assert wait_until(lambda: any(each.name.isdigit() for each in tmp_path.iterdir()), seconds=20)
    time.sleep(0.2)
    started = time.monotonic()
    registry.close("enough")
    thread.join(20)
    assert time.monotonic() - started < ENDS_WITHIN
    assert isinstance(errors[0], (CopyCancelled, CopyFailed))
    assert wait_until(lambda: children() <= before), children() - before
    assert not in_groups([int(each.name) for each in tmp_path.iterdir() if each.name.isdigit()])
    assert not (tmp_path / "to").exists()


def in_groups(groups: list[int]) -> list[int]:
    """Living processes of these process groups."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def test_bytes_that_stand_still_are_noticed_and_the_rest_goes_on(fake: Callable[[str], Path], tmp_path: Path) -> None:
    path = fake("""
        for source, destination in lines():
            if source.endswith("/1"):
                open(destination + "123", "w").write("so")
                continue
            copy(source, destination)
            succeed(source, destination)
        time.sleep(1000)
    """)
    backend = file_system(path, {"transfer.stall-timeout": "0.5s", "transfer.retries": 1})
    started = time.monotonic()
    failure = copy_fails(backend, requests_to(tmp_path, 5))
    assert time.monotonic() - started < 20
    assert [type(error) for error in failure.errors] == [StalledTransfer]
    assert failure.errors[0].request == requests_to(tmp_path, 5)[1]
    assert len(failure.done) == 4


def test_a_file_that_grows_slowly_is_not_stalled(fake: Callable[[str], Path], tmp_path: Path) -> None:
    path = fake("""
        for source, destination in lines():
            with open(destination + "123", "w", buffering=1) as file:
                for number in range(5):
                    time.sleep(0.4)
                    os.write(file.fileno(), b"x")
            os.rename(destination + "123", destination)
            succeed(source, destination)
    """)
    backend = file_system(path, {"transfer.stall-timeout": "1s", "transfer.retries": 0})
    assert copy(backend, requests_to(tmp_path, 1)).bytes == 5


_DYING = """
import os, sys, threading, time
from statelift.s5cmd_integration.process import Process
process = Process(sys.argv[1:], dict(os.environ))
print(process.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("setpriv", [True, False], ids=["setpriv", "preexec"])
def test_a_child_dies_with_its_parent(setpriv: bool) -> None:
    code = _DYING if setpriv else "import shutil; shutil.which = lambda *_, **__: None\n" + _DYING
    assert_dies([sys.executable, "-c", code, "sleep", "1000"])


def test_the_child_of_a_script_dies_with_its_grandparent(tmp_path: Path) -> None:
    script = tmp_path / "wrapper"
    script.write_text("#!/bin/sh\nsleep 1000\nexit 1\n")
    script.chmod(0o755)
    assert_dies([sys.executable, "-c", _DYING, str(script)], family=2)


def assert_dies(command: list[str], *, family: int = 1) -> None:
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        assert wait_until(lambda: len(in_groups([group])) == family, seconds=10), in_groups([group])
        below = psutil.Process(parent.pid).children(recursive=True)
        parent.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not in_groups([group]))
    assert wait_until(lambda: not [each for each in below if each.is_running() and each.status() != "zombie"])


def test_a_child_is_started_without_a_copy_of_this_process() -> None:
    assert child_module._wrapper(), "util-linux's setpriv is part of Debian"
    process = start_child(["cat", "/proc/self/stat"], stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=10)
    fields = out.decode().rpartition(")")[2].split()
    assert int(fields[2]) == int(fields[3]) == process.pid, "its own group and session"


def test_input_that_is_not_read_does_not_block() -> None:
    process = Process(["sleep", "1000"], dict(os.environ))
    process.write(b"x" * MIB)
    assert process.blocked
    process.finish()
    assert process.input is not None
    process.terminate()
    process.kill()
    assert process.wait() in {-signal.SIGTERM, -signal.SIGKILL}
    process.close()
    process.signal(signal.SIGKILL)


def test_input_to_a_dead_process_is_dropped() -> None:
    process = Process(["true"], dict(os.environ))
    assert wait_until(lambda: process.ended)
    process.write(b"line\n")
    assert process.input is None
    process.kill()
    assert process.wait() == 0
    process.close()


def test_a_real_s5cmd_that_waits_for_input_is_ended(s3: S3Server) -> None:
    process = Process([REAL, "run"], {})
    time.sleep(0.3)
    process.terminate()
    assert wait_until(lambda: process.ended)
    process.kill()
    process.wait()
    process.close()


# The CPU limit.

_SPIN = [sys.executable, "-SE", "-c", "while True: pass"]


def share_used(pid: int, seconds: float) -> float:
    """CPU time per second of wall time."""
    process = psutil.Process(pid)
    began, used = time.monotonic(), sum(process.cpu_times()[:2])
    time.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - used) / (time.monotonic() - began)


@pytest.fixture(params=["program", "psutil"])
def make_limit(request: pytest.FixtureRequest) -> Callable[[int, float], CpuLimit]:
    if request.param == "psutil":
        return DutyCycle
    program = shutil.which("cpulimit")
    if program is None:
        pytest.skip("cpulimit is not installed")
    return lambda pid, percent: ProgramLimit(program, pid, percent)


def test_a_limit_holds_and_ends(make_limit: Callable[[int, float], CpuLimit]) -> None:
    spinning = start_child(_SPIN)
    try:
        limit = make_limit(spinning.pid, 30)
        time.sleep(0.3)
        # The accuracy is the benchmark's matter, on a machine with nothing else to do.
        assert share_used(spinning.pid, 1.5) < 0.5
        assert limit.alive
        limit.stop()
        limit.stop()
        assert not limit.alive
        assert psutil.Process(spinning.pid).status() != psutil.STATUS_STOPPED
    finally:
        spinning.kill()
        spinning.wait()


def test_a_limit_never_leaves_a_stopped_process(make_limit: Callable[[int, float], CpuLimit]) -> None:
    spinning = start_child(_SPIN)
    try:
        for pause in (0.0, 0.03, 0.11, 0.17):
            limit = make_limit(spinning.pid, 5)
            time.sleep(pause)
            limit.stop()
            assert wait_until(lambda: psutil.Process(spinning.pid).status() != psutil.STATUS_STOPPED)
    finally:
        spinning.kill()
        spinning.wait()


def test_a_limit_on_a_dead_process_ends(make_limit: Callable[[int, float], CpuLimit]) -> None:
    spinning = start_child(_SPIN)
    limit = make_limit(spinning.pid, 20)
    spinning.kill()
    time.sleep(0.3)
    started = time.monotonic()
    limit.stop()
    assert time.monotonic() - started < ENDS_WITHIN
    spinning.wait()


def test_psutil_limits_where_the_program_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    spinning = start_child(["sleep", "1000"])
    limit = limit_cpu(spinning.pid, 50)
    assert isinstance(limit, DutyCycle)
    spinning.kill()
    limit.stop()
    spinning.wait()


_LIMITED = """
import os, shutil, sys, time
if sys.argv[1] == "psutil":
    shutil.which = lambda *_, **__: None
from statelift.s5cmd_integration.child import start_child
from statelift.s5cmd_integration.cpulimit import limit_cpu
child = start_child([sys.executable, "-SE", "-c", "while True: pass"])
limit = limit_cpu(child.pid, 10)
print(child.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("how", ["program", "psutil"])
def test_a_limited_child_and_its_limit_die_with_their_parent(how: str) -> None:
    if how == "program" and shutil.which("cpulimit") is None:
        pytest.skip("cpulimit is not installed")
    with subprocess.Popen([sys.executable, "-c", _LIMITED, how], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        time.sleep(0.3)
        below = psutil.Process(parent.pid).children(recursive=True)
        assert len(below) == (2 if how == "program" else 1)
        parent.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not [each for each in below if each.is_running() and each.status() != "zombie"])


def test_a_limited_copy_is_whole_and_leaves_nothing(
    s3: S3Server, configuration: Configuration, bucket: str, tmp_path: Path
) -> None:
    data = os.urandom(8 * MIB)
    for number in range(4):
        (s3.root / bucket / str(number)).write_bytes(data)
    backend = S5cmdFileSystem(configuration.with_arguments({"s3.s5cmd.cpulimit": 40, "s3.s5cmd.batch.max-files": 2}))
    before = children()
    report = copy(backend, [CopyRequest(f"s3://{bucket}/{n}", f"{tmp_path}/{n}", size=len(data)) for n in range(4)])
    assert report.bytes == 4 * len(data)
    assert [(tmp_path / str(n)).read_bytes() == data for n in range(4)] == [True] * 4
    assert children() <= before


def test_a_limiter_that_is_killed_is_replaced(
    s3: S3Server, configuration: Configuration, bucket: str, tmp_path: Path
) -> None:
    if shutil.which("cpulimit") is None:
        pytest.skip("cpulimit is not installed")
    (s3.root / bucket / "large").write_bytes(os.urandom(4 * MIB))
    with SlowProxy(s3.endpoint, rate=MIB) as slow:
        backend = S5cmdFileSystem(
            configuration.with_arguments(
                {"s3.endpoint": slow.endpoint, "s3.s5cmd.cpulimit": 20, "transfer.stall-timeout": "2s"}
            )
        )
        registry, thread, errors = start(backend, [CopyRequest(f"s3://{bucket}/large", f"{tmp_path}/large")])
        slow.wait_until_moved(MIB // 2)
        limiters = [each for each in psutil.Process().children() if "cpulimit" in each.name()]
        assert limiters
        running = [each for each in psutil.Process().children() if "s5cmd" in each.name()]
        limiters[0].kill()
        running[0].suspend()
        thread.join(40)
    assert not thread.is_alive()
    assert errors == []
    assert not registry.closed
    assert (tmp_path / "large").stat().st_size == 4 * MIB


def test_a_copied_file_is_as_private_as_the_umask_says(
    s3: S3Server, configuration: Configuration, bucket: str, tmp_path: Path
) -> None:
    (s3.root / bucket / "a").write_bytes(b"bytes")
    old = os.umask(0o077)
    try:
        copy(S5cmdFileSystem(configuration), [CopyRequest(f"s3://{bucket}/a", f"{tmp_path}/a")])
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_lines_that_are_tried_again_together_share_a_process(fake: Callable[[str], Path], tmp_path: Path) -> None:
    path = fake(f"""
        open("{tmp_path}/" + str(os.getpid()), "w")
        for source, destination in lines():
            again = "{tmp_path}/again-" + source.rpartition("/")[2]
            if os.path.exists(again):
                copy(source, destination)
                succeed(source, destination)
            else:
                open(again, "w")
                command = f"cp {{source}} {{destination}}"
                say(sys.stderr, command=command, error="InternalError: by order status code: 500, request id: 1")
    """)
    report = copy(file_system(path, {"transfer.retries": 3}), requests_to(tmp_path, 12))
    assert len(report.files) == 12
    assert len([each for each in tmp_path.iterdir() if each.name.isdigit()]) <= 3
