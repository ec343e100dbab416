"""The contenders that are Python libraries: ``python -m statelift.bench.peers NAME PLAN``.

Each is used as its documentation advises for many files, with its own defaults for concurrency
unless the plan names a number of connections. Each prints one JSON line with the seconds that
copying took after imports, the CPU seconds of that, child processes included, and the bytes of
memory in use when it began.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..backends.request import locate

_CHUNK = 1 << 20
_THREADS = 8


class Work:
    """A plan as its contender reads it."""

    def __init__(self, path: str) -> None:
        plan = json.loads(Path(path).read_text())
        self.direction: str = plan["direction"]
        self.endpoint: str = plan["endpoint"]
        self.connections: int | None = plan["connections"]
        self.files: list[dict[str, Any]] = plan["files"]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(each["source"], each["destination"]) for each in self.files]


def _statelift(work: Work, module: str, name: str, options: dict[str, object]) -> Callable[[], object]:
    import importlib

    from ..backends.closeables import CloseableRegistry
    from ..backends.options import Configuration
    from ..backends.request import CopyRequest

    made = getattr(importlib.import_module(module, __package__), name)(Configuration(options))
    requests = [CopyRequest(**each) for each in work.files]
    return lambda: made.copy_files(requests, CloseableRegistry())


def stream_one_by_one(work: Work) -> Callable[[], object]:
    return _statelift(work, "..backends.stream", "StreamFileSystem", {"stream.parallel": 1})


def stream_parallel(work: Work) -> Callable[[], object]:
    return _statelift(work, "..backends.stream", "StreamFileSystem", {})


def sdk_classic(work: Work) -> Callable[[], object]:
    return _statelift(work, "..backends.sdk", "SdkFileSystem", {"sdk.client": "classic"})


def sdk_crt(work: Work) -> Callable[[], object]:
    return _statelift(work, "..backends.sdk", "SdkFileSystem", {"sdk.client": "crt"})


def s5cmd(work: Work) -> Callable[[], object]:
    from .programs import find_s5cmd

    return _statelift(work, "..s5cmd_integration", "S5cmdFileSystem", {"s3.s5cmd.path": find_s5cmd()})


def wire(work: Work) -> Callable[[], object]:
    options = {"s3.connection.max": work.connections} if work.connections else {}
    return _statelift(work, "..backends.wire", "WireFileSystem", dict(options))


def wire_unverified(work: Work) -> Callable[[], object]:
    return _statelift(work, "..backends.wire", "WireFileSystem", {"transfer.verify": False})


def obstore(work: Work) -> Callable[[], object]:
    from obstore.store import S3Store

    # obstore takes no authority of one's own: over HTTPS it does not check the certificate here.
    client = {"allow_http": True, "allow_invalid_certificates": work.endpoint.startswith("https:")}
    bucket = _bucket(work)
    store = S3Store(bucket, endpoint=work.endpoint, virtual_hosted_style_request=False, client_options=client)
    copy = {"download": _obstore_get, "upload": _obstore_put, "server-side": _obstore_copy}[work.direction]

    def run() -> None:
        with ThreadPoolExecutor(work.connections or _THREADS) as pool:
            list(pool.map(lambda pair: copy(store, *pair), work.pairs))

    return run


def _bucket(work: Work) -> str:
    return next(locate(uri).bucket for pair in work.pairs for uri in pair if uri.startswith("s3://"))


def _obstore_get(store: Any, source: str, destination: str) -> None:
    import obstore

    with open(destination, "wb", buffering=0) as file:
        file.writelines(obstore.get(store, locate(source).key).stream(min_chunk_size=_CHUNK))


def _obstore_put(store: Any, source: str, destination: str) -> None:
    import obstore

    obstore.put(store, locate(destination).key, Path(source))


def _obstore_copy(store: Any, source: str, destination: str) -> None:
    import obstore

    obstore.copy(store, locate(source).key, locate(destination).key)


def s3fs(work: Work) -> Callable[[], object]:
    from s3fs import S3FileSystem

    verify = os.environ.get("AWS_CA_BUNDLE")
    client = {"endpoint_url": work.endpoint, **({"verify": verify} if verify else {})}
    pool = {"config_kwargs": {"max_pool_connections": work.connections}} if work.connections else {}
    system = S3FileSystem(client_kwargs=client, skip_instance_cache=True, **pool)
    sources, destinations = (list(side) for side in zip(*work.pairs, strict=True))
    method = {"download": system.get, "upload": system.put, "server-side": system.copy}[work.direction]
    return lambda: method(sources, destinations)


PEERS = {
    function.__name__: function
    for function in (
        stream_one_by_one,
        stream_parallel,
        sdk_classic,
        sdk_crt,
        s5cmd,
        wire,
        wire_unverified,
        obstore,
        s3fs,
    )
}


def main(argv: list[str]) -> int:
    run = PEERS[argv[0]](Work(argv[1]))
    memory, started, before = _resident(), time.monotonic(), _cpu()
    run()
    took = {"seconds": round(time.monotonic() - started, 4), "cpu": round(_cpu() - before, 4)}
    print(json.dumps({**took, "memory_before": memory}))
    return 0


def _resident() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
    return 0


def _cpu() -> float:
    """CPU seconds of this process and of the children that it waited for, in microseconds' resolution."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
