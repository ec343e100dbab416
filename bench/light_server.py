"""A light S3 look-alike for benchmarks: it must cost less than what is measured against it.

``rclone serve s3`` hashes every file for its ETag; this one sends files by ``sendfile`` and throws
uploads away. It checks no signature. HEAD, GET with ranges, PUT, multipart uploads, copies and
deletions are answered as far as s5cmd, boto3, obstore and our own backends ask for them.

    python -m statelift.bench.light_server ROOT [--delay 0.03] [--rate BYTES] [--certificate CHAIN --key KEY]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..backends.wire.loop import Loop
from ..backends.wire.poller import READ
from ..s5cmd_integration.child import die_with_parent
from .light_peer import BUFFER, FOREVER, Peer, Traffic, traffic_of
from .light_store import Store

# AWS and Go's servers choose AES-128 of what a client offers; OpenSSL would choose what the client
# names first, so that clients would be compared by their ciphers. Python's ssl cannot say it.
_PREFERENCES = """
openssl_conf = init
[init]
ssl_conf = modules
[modules]
system_default = defaults
[defaults]
Ciphersuites = TLS_AES_128_GCM_SHA256
"""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Args:
    delay: seconds before the first byte of every answer.
    rate: bytes per second of one connection, in each direction.
    """

    delay: float = 0.0
    rate: float = 0.0


class LightServer:
    """Listens on loopback and serves until it is killed."""

    def __init__(self, root: Path, behaviour: Behaviour, context: ssl.SSLContext | None) -> None:
        self.behaviour = behaviour
        self.context = context
        self.store = Store(root, mapped=context is not None)
        self.loop = Loop()
        self.buffer = memoryview(bytearray(BUFFER))
        self.scratch = memoryview(bytearray(256 << 10))
        self.peers: set[Peer] = set()
        self._ended = Traffic()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def run(self) -> None:
        self.loop.add(self._listener.fileno())
        self.loop.spawn(self._accept())
        self.loop.spawn(self._tell())
        self.loop.run()

    def leave(self, peer: Peer) -> None:
        """A connection ends; what went over it stays counted."""
        self.peers.discard(peer)
        self._ended += traffic_of(peer.plain)

    def traffic(self) -> Traffic:
        """Of all connections since the start."""
        return sum((traffic_of(peer.plain) for peer in self.peers), self._ended)

    async def _tell(self) -> None:
        """Answer each line on standard input with the traffic so far."""
        fd = sys.stdin.fileno()
        try:
            self.loop.add(fd)
        except PermissionError:
            # A file, or nothing: nobody asks.
            return
        os.set_blocking(fd, False)
        while True:
            try:
                asked = os.read(fd, 64)
            except BlockingIOError:
                await self.loop.wait(fd, READ, FOREVER)
                continue
            if not asked:
                self.loop.remove(fd)
                return
            print(json.dumps(dataclasses.asdict(self.traffic())), flush=True)

    async def _accept(self) -> None:
        while True:
            try:
                plain, _address = self._listener.accept()
            except BlockingIOError:
                await self.loop.wait(self._listener.fileno(), READ, FOREVER)
                continue
            plain.setblocking(False)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.loop.spawn(Peer(self, plain).serve())


@dataclass(frozen=True)
class LightProcess:
    """A light server that runs in a process of its own.

    Args:
        endpoint: its URL; buckets are the folders of its directory.
    """

    endpoint: str
    child: subprocess.Popen[str]

    def traffic(self) -> Traffic:
        """Bytes that its clients received and sent since it started."""
        if self.child.stdin is None or self.child.stdout is None:
            return Traffic()
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        return Traffic(**json.loads(self.child.stdout.readline()))


@contextmanager
def start_light(
    root: Path,
    *,
    cpus: set[int] | None = None,
    certificate: tuple[Path, Path] | None = None,
    delay: float = 0.0,
    rate: float = 0.0,
) -> Iterator[LightProcess]:
    """Run the server in a process of its own until the block ends.

    Args:
        root: its buckets are the folders of this directory.
        cpus: pin the server to these CPUs.
        certificate: (chain, key) as PEM files turn TLS on; the host is ``localhost`` then.
        delay: seconds before the first byte of every answer.
        rate: bytes per second of one connection, in each direction.
    """
    command = [sys.executable, "-m", "statelift.bench.light_server", str(root), f"--delay={delay}", f"--rate={rate}"]
    if certificate:
        command += ["--certificate", str(certificate[0]), "--key", str(certificate[1])]
    with tempfile.NamedTemporaryFile("w", suffix=".cnf") as preferences:
        preferences.write(_PREFERENCES)
        preferences.flush()
        environment = {**os.environ, "OPENSSL_CONF": preferences.name}
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, preexec_fn=die_with_parent, env=environment
        )
        line = child.stdout.readline() if child.stdout else ""
    try:
        if cpus and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(child.pid, cpus)
        if not line:
            raise RuntimeError("the light server did not start")
        yield LightProcess(line.strip(), child)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        for end in (child.stdin, child.stdout):
            if end:
                end.close()


@contextmanager
def serve_light(root: Path) -> Iterator[str]:
    """The endpoint of a light server, for those who ask nothing else of it."""
    with start_light(root) as process:
        yield process.endpoint


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    given: Any = parser.parse_args(argv)
    context = None
    if given.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(given.certificate, given.key)
    server = LightServer(given.root, Behaviour(given.delay, given.rate), context)
    scheme, host = ("https", "localhost") if context else ("http", "127.0.0.1")
    print(f"{scheme}://{host}:{server.port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()


if __name__ == "__main__":
    main()
