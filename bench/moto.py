"""moto's S3 server in a process of its own, for Hadoop's client.

S3A makes directories as objects whose names end in a slash; ``rclone serve s3`` makes files of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..s5cmd_integration.child import die_with_parent
from .servers import BUCKET, Server

_SERVE = """
import sys
from moto.server import ThreadedMotoServer
from werkzeug.serving import WSGIRequestHandler
# The AWS SDK sends the body at once, and takes a 100 for the final answer.
WSGIRequestHandler.handle_expect_100 = lambda handler: True
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def moto_server(root: Path, *, cpu: int | None) -> Iterator[Server]:
    """A server with an empty bucket; it checks no signature and keeps objects in temporary files."""
    command, pipe = [sys.executable, "-c", _SERVE], subprocess.PIPE
    root.mkdir(parents=True, exist_ok=True)
    with (root / "moto.log").open("wb") as log:
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, preexec_fn=die_with_parent)
    try:
        line = child.stdout.readline() if child.stdout else b""
        if not line:
            raise RuntimeError(f"moto did not start: {(root / 'moto.log').read_text(errors='replace')[-300:]}")
        if cpu is not None:
            for thread in os.listdir(f"/proc/{child.pid}/task"):
                os.sched_setaffinity(int(thread), {cpu})
        server = Server("moto", f"http://127.0.0.1:{int(line)}", root, "bench", "bench-secret")
        _make_bucket(server)
        yield server
    finally:
        child.kill()
        child.communicate()


def _make_bucket(server: Server) -> None:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()
