"""Checkpoints as a store keeps them: complete or not there."""

from __future__ import annotations

import pytest

from statelift.backends.errors import CheckpointError, CheckpointNotFound
from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.checkpoint.metadata import CheckpointMetadata, encode
from statelift.transfer.checkpoint.store import CheckpointStore


def metadata(number: int) -> CheckpointMetadata:
    return CheckpointMetadata(number, 128, 1, ())


@pytest.fixture(scope="module", params=["s3", "moto", "local"])
def kind(request: pytest.FixtureRequest):
    """(kind of store, one CheckpointStore for all tests of it)."""
    server = request.getfixturevalue("moto_s3" if request.param == "moto" else "s3")
    with CheckpointStore(Configuration(server.options, environ={})) as store:
        yield request.param, store


@pytest.fixture
def place(kind, request: pytest.FixtureRequest, tmp_path):
    """(CheckpointStore, base) on each kind of store."""
    name, store = kind
    if name == "local":
        return store, str(tmp_path / "job")
    return store, f"s3://{request.getfixturevalue('moto_bucket' if name == 'moto' else 'bucket')}/job"


def test_write_read_latest(place) -> None:
    store, base = place
    assert store.latest(base) is None
    for number in (2, 10, 9):
        store.write(CheckpointLocation(base, number), metadata(number))
    assert store.read(f"{base}/chk-10") == (CheckpointLocation(base, 10), metadata(10))
    assert [each.checkpoint_id for each in store.list(base)] == [2, 9, 10]
    assert store.latest(f"{base}/") == CheckpointLocation(base, 10)


def test_a_checkpoint_is_never_written_twice(place) -> None:
    store, base = place
    location = CheckpointLocation(base, 1)
    store.write(location, metadata(1))
    with pytest.raises(CheckpointError, match=f"{base}/chk-1: this checkpoint exists already"):
        store.write(location, CheckpointMetadata(1, 64, 2, ()))
    assert store.read(str(location))[1] == metadata(1)


def test_a_checkpoint_exists_only_with_its_metadata(place) -> None:
    store, base = place
    store.objects.write(f"{base}/chk-5/some-file", b"x")
    store.objects.write(f"{base}/chk-6/deeper/_metadata", encode(metadata(6)))
    store.objects.write(f"{base}/chk-x/_metadata", encode(metadata(6)))
    assert store.list(base) == []
    with pytest.raises(CheckpointNotFound, match=f"{base}/chk-5: there is no checkpoint.*never completed"):
        store.read(f"{base}/chk-5")


def test_a_moved_base_is_read_as_it_is(place) -> None:
    store, base = place
    store.write(CheckpointLocation(base, 3), metadata(3))
    moved = f"{base}-moved"
    store.objects.write(f"{moved}/chk-3/_metadata", store.objects.read(f"{base}/chk-3/_metadata"))
    assert store.read(f"{moved}/chk-3")[0] == CheckpointLocation(moved, 3)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-7], lambda data: data.replace(b'"full"', b'"fuLl"'), lambda _: b""]
)
def test_damage_is_named(place, damage) -> None:
    store, base = place
    whole = encode(CheckpointMetadata(4, 8, 2, (), "full"))
    store.objects.write(f"{base}/chk-4/_metadata", damage(whole))
    with pytest.raises(CheckpointError, match=f"{base}/chk-4: the metadata .*use another checkpoint"):
        store.read(f"{base}/chk-4")


def test_metadata_of_another_checkpoint_is_refused(place) -> None:
    store, base = place
    store.objects.write(f"{base}/chk-4/_metadata", encode(metadata(5)))
    with pytest.raises(CheckpointError, match="chk-4: the metadata is that of checkpoint 5"):
        store.read(f"{base}/chk-4")
    with pytest.raises(CheckpointError, match="that of checkpoint 5"):
        store.write(CheckpointLocation(base, 6), metadata(5))


def test_a_missing_bucket_is_named(configuration) -> None:
    with CheckpointStore(configuration) as store, pytest.raises(CheckpointNotFound, match="no such bucket"):
        store.read("s3://no-such-bucket/job/chk-1")


def test_endless_metadata_is_refused_unread(place, monkeypatch) -> None:
    store, base = place
    location = CheckpointLocation.parse(f"{base}/chk-1")
    store.write(location, metadata(1))
    monkeypatch.setattr("statelift.transfer.checkpoint.store.LONGEST_DOCUMENT", 20)
    with pytest.raises(CheckpointError, match=f"{location}: .*bytes, more than 20"):
        store.read(str(location))
    assert not store.is_snapshot(str(location))
