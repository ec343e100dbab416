"""moto's S3 server, for what rclone has not: If-Match, UploadPartCopy, conditional writes.

A process of its own: tests fork, and moto's threads must not be forked with them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from statelift.s5cmd_integration.child import die_with_parent

_SERVE = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@dataclass(frozen=True)
class MotoServer:
    """Where it listens. It checks no signatures: any credentials do."""

    endpoint: str
    pid: int
    access_key: str = "moto"
    secret_key: str = "moto-secret"

    @property
    def options(self) -> dict[str, str]:
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key": self.access_key,
            "s3.secret-key": self.secret_key,
        }

    def reset(self) -> None:
        """Forget every bucket."""
        request = urllib.request.Request(f"{self.endpoint}/moto-api/reset", method="POST")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10).close()


@contextmanager
def serve_moto(log: Path) -> Iterator[MotoServer]:
    """Run moto's server until the block ends; what it says goes to ``log``."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            preexec_fn=die_with_parent,
            # Parts as small as a test wants them.
            env={**os.environ, "S3_UPLOAD_PART_MIN_SIZE": str(16 << 10)},
        )
    try:
        line = child.stdout.readline() if child.stdout else b""
        if not line:
            raise RuntimeError(f"moto did not start: {log.read_text()[-500:]}")
        port = int(line)
        _wait_until_listening(port)
        yield MotoServer(f"http://127.0.0.1:{port}", child.pid)
    finally:
        child.kill()
        child.communicate()


def _wait_until_listening(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"moto does not listen on {port}, cpus: {os.cpu_count()}")
