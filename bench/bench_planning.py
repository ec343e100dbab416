"""Planning without a byte moved: 100,000 handles, and the manifests of their databases."""

from __future__ import annotations

import random
from typing import Any

import pytest

from statelift.backends.batch import largest_first
from statelift.backends.request import CopyRequest
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.checkpoint.metadata import CheckpointMetadata, decode, encode
from statelift.transfer.downloader import Download
from statelift.transfer.downloader import plan as plan_downloads
from statelift.transfer.files.mapping import FileMapping, PhysicalFile
from statelift.transfer.files.ownership import Ownership
from statelift.transfer.handles import KeyedStateHandle, KeyGroupRange, RelativeFileHandle, StateFile, key_groups_of
from statelift.transfer.keyed.database import KeyedState
from statelift.transfer.keyed.manifest import parse, read_manifest, serialize
from statelift.transfer.keyed.plan import plan_restore

COUNT = 100_000
GROUPS = 32_768


@pytest.fixture(scope="module")
def handle() -> KeyedStateHandle:
    files = tuple(_state_file(number) for number in range(COUNT))
    return KeyedStateHandle(KeyGroupRange(0, GROUPS - 1), GROUPS, "lineage", 7, files)


def _state_file(number: int) -> StateFile:
    group = number * GROUPS // COUNT
    first = group.to_bytes(2, "big")
    handle = RelativeFileHandle("shared", f"{number:032x}", 1 << 20, crc64nvme=number)
    return StateFile(f"{number:06}.sst", handle, first + b"a", first + b"z", 6)


def test_plan_a_rescale(benchmark: Any, handle: KeyedStateHandle) -> None:
    plan = benchmark(plan_restore, [handle], key_groups_of(1, 2, GROUPS))
    assert abs(len(plan.sources[0].needed) - COUNT // 2) <= 4


def test_plan_downloads(benchmark: Any, handle: KeyedStateHandle) -> None:
    downloads = [Download(file.handle, f"/state/{file.name}") for file in handle.shared]
    _inline, requests = benchmark(plan_downloads, CheckpointLocation("s3://bucket/job", 7), downloads)
    assert len(requests) == COUNT
    assert requests[-1].source == f"s3://bucket/job/shared/{COUNT - 1:032x}"


def test_order_a_batch(benchmark: Any) -> None:
    sizes = random.Random(1)
    requests = [CopyRequest(f"s3://b/{n}", f"/d/{n}", size=sizes.randrange(1 << 26)) for n in range(COUNT)]
    ordered = benchmark(largest_first, requests)
    assert ordered[0].size == max(request.size or 0 for request in requests)


@pytest.fixture(scope="module")
def metadata(handle: KeyedStateHandle) -> CheckpointMetadata:
    return CheckpointMetadata(7, GROUPS, 1, (handle,), created=0.0)


def test_encode_metadata(benchmark: Any, metadata: CheckpointMetadata) -> None:
    document = benchmark.pedantic(encode, (metadata,), rounds=3)
    assert decode(document, name="chk-7") == metadata


def test_decode_metadata(benchmark: Any, metadata: CheckpointMetadata) -> None:
    document = encode(metadata)
    found = benchmark.pedantic(decode, (document,), {"name": "chk-7"}, rounds=3)
    assert found == metadata


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A real MANIFEST of a database of some files, as bytes."""
    directory = tmp_path_factory.mktemp("state") / "state"
    with KeyedState.open(directory, KeyGroupRange(0, 127), 128) as state:
        for start in range(40):
            state.write((group, b"%d-%d" % (start, group), bytes(100)) for group in range(128))
            state.flush()
    return serialize(read_manifest(str(directory)))


def test_parse_a_manifest(benchmark: Any, manifest: bytes) -> None:
    assert serialize(benchmark(parse, manifest)) == manifest


def test_write_a_manifest_anew(benchmark: Any, manifest: bytes) -> None:
    whole = parse(manifest)
    names = [file.name for file in whole.files][::2]
    kept = benchmark(lambda: serialize(whole.only(names)))
    assert [file.name for file in parse(kept).files] == names


def test_look_up_mapped_files(benchmark: Any) -> None:
    mapping = FileMapping()
    paths = [f"/db/{number:06}.sst" for number in range(COUNT)]
    for path in paths:
        mapping.add(path, PhysicalFile(f"/disk/{path}", Ownership.PRIVATE))
    found = benchmark(lambda: sum(mapping.get(path) is not None for path in paths))
    assert found == COUNT
