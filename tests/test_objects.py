"""Small objects on S3, on a local disk and on an fsspec file system."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from statelift.backends.errors import (
    AccessDenied,
    BackendUnavailable,
    ConnectionFailed,
    DestinationError,
    IntegrityError,
    SourceNotFound,
)
from statelift.backends.options import Configuration
from statelift.transfer.objects import Objects


@pytest.fixture(scope="module", params=["s3", "moto", "local", "file-uri", "memory"])
def kind(request: pytest.FixtureRequest):
    """(kind of store, one Objects for all tests of it)."""
    server = {"s3": "s3", "moto": "moto_s3"}.get(request.param)
    options = request.getfixturevalue(server).options if server else {}
    with Objects(Configuration(options, environ={})) as objects:
        yield request.param, objects


@pytest.fixture
def place(kind, request: pytest.FixtureRequest, tmp_path):
    """(Objects, URI of an empty directory) on each kind of store."""
    name, objects = kind
    match name:
        case "s3":
            root = f"s3://{request.getfixturevalue('bucket')}"
        case "moto":
            root = f"s3://{request.getfixturevalue('moto_bucket')}"
        case "memory":
            root = f"memory://{tmp_path.name}"
        case _:
            root = str(tmp_path) if name == "local" else f"file://{tmp_path}"
    return objects, root


def test_write_read_replace(place) -> None:
    objects, root = place
    uri = f"{root}/a b/x+é"
    for data in (b"one", b"", b"three" * 1000):
        objects.write(uri, data)
        assert objects.read(uri) == data
        assert objects.size(uri) == len(data)
    assert objects.exists(uri)
    assert not objects.exists(f"{root}/a b/x")


def test_missing_is_named(place) -> None:
    objects, root = place
    for look in (objects.read, objects.size):
        with pytest.raises(SourceNotFound, match=f"{root}/nope"):
            look(f"{root}/nope")


def test_what_is_longer_than_its_reader_takes_is_refused_unread(place) -> None:
    objects, root = place
    objects.write(f"{root}/long", b"12345")
    assert objects.read(f"{root}/long", at_most=5) == b"12345"
    with pytest.raises(IntegrityError, match=f"{root}/long has 5 bytes, more than 4"):
        objects.read(f"{root}/long", at_most=4)
    assert objects.read(f"{root}/long") == b"12345"


def test_only_if_absent_never_replaces(place) -> None:
    objects, root = place
    objects.write(f"{root}/d/once", b"first", only_if_absent=True)
    with pytest.raises(DestinationError, match="exists already") as caught:
        objects.write(f"{root}/d/once", b"second", only_if_absent=True)
    assert caught.value.errno == errno.EEXIST
    assert objects.read(f"{root}/d/once") == b"first"


def test_list_takes_a_prefix_at_any_depth(place) -> None:
    objects, root = place
    for name in ("p/chk-1/_metadata", "p/chk-1/x", "p/chk-10/_metadata", "p/other", "q"):
        objects.write(f"{root}/{name}", name.encode())

    def names(prefix: str) -> list[str]:
        return sorted(each.uri.removeprefix(f"{root}/") for each in objects.list(f"{root}/{prefix}"))

    assert names("p/chk-1") == ["p/chk-1/_metadata", "p/chk-1/x", "p/chk-10/_metadata"]
    assert names("p/chk-1/") == ["p/chk-1/_metadata", "p/chk-1/x"]
    assert names("") == ["p/chk-1/_metadata", "p/chk-1/x", "p/chk-10/_metadata", "p/other", "q"]
    assert names("nothing/here") == []
    [found] = objects.list(f"{root}/q")
    assert (found.size, found.modified > 1e9) == (1, True)
    assert objects.read(found.uri) == b"q"


def test_delete_ignores_what_is_not_there(place) -> None:
    objects, root = place
    for index in range(3):
        objects.write(f"{root}/{index}", b"x")
    objects.delete([f"{root}/0", f"{root}/missing", f"{root}/2"])
    assert [each.uri for each in objects.list(f"{root}/")] == [f"{root}/1"]
    objects.delete([])


def test_delete_in_batches(configuration, bucket, s3, monkeypatch) -> None:
    monkeypatch.setattr("statelift.transfer.s3_objects._DELETED_AT_ONCE", 10)
    for index in range(33):
        (s3.root / bucket / f"{index}").write_bytes(b"")
    with Objects(configuration) as objects:
        objects.delete(f"s3://{bucket}/{index}" for index in range(33))
    assert not list((s3.root / bucket).iterdir())


@pytest.mark.parametrize("on", ["moto", "local"])
def test_of_many_writers_one_wins(on: str, request, tmp_path) -> None:
    if on == "moto":
        root = f"s3://{request.getfixturevalue('moto_bucket')}"
        objects = Objects(request.getfixturevalue("moto_configuration"))
    else:
        root, objects = str(tmp_path), Objects(Configuration(environ={}))
    won: list[bytes] = []
    barrier = threading.Barrier(8)

    def write(data: bytes) -> None:
        barrier.wait()
        try:
            objects.write(f"{root}/claim", data, only_if_absent=True)
        except DestinationError:
            return
        won.append(data)

    threads = [threading.Thread(target=write, args=(b"%d" % index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [objects.read(f"{root}/claim")]
    objects.close()


def test_a_lost_answer_to_our_own_write_is_no_conflict(moto_configuration, moto_bucket) -> None:
    """The client repeats a conditional write whose answer it did not get; then 412 means success."""
    objects = Objects(moto_configuration)
    uri = f"s3://{moto_bucket}/m"
    objects.write(uri, b"mine")
    assert objects._s3._put_if_absent(uri, b"mine")
    assert not objects._s3._put_if_absent(uri, b"theirs")
    objects.close()


def test_wrong_credentials_missing_bucket_refused_connection(configuration) -> None:
    wrong = Objects(configuration.with_arguments({"s3.secret-key": "wrong"}))
    with pytest.raises(AccessDenied, match=r"s3://state/x.*check s3.access-key"):
        wrong.read("s3://state/x")
    with pytest.raises(SourceNotFound, match="no such bucket: s3://no-such-bucket/"):
        list(Objects(configuration).list("s3://no-such-bucket/"))
    with pytest.raises(SourceNotFound, match="no such bucket"):
        Objects(configuration).write("s3://no-such-bucket/x", b"")
    refused = configuration.with_arguments({"s3.endpoint": "http://127.0.0.1:9", "transfer.retries": 0})
    with pytest.raises(ConnectionFailed, match=r"check s3.endpoint"):
        Objects(refused).read("s3://state/x")


def test_an_unknown_scheme_is_named() -> None:
    with pytest.raises(BackendUnavailable, match="nope://x/y"):
        Objects(Configuration(environ={})).read("nope://x/y")


def test_a_directory_in_the_way_is_a_destination_error(tmp_path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(DestinationError, match="directory"):
        Objects(Configuration(environ={})).write(str(tmp_path / "d"), b"x")
    assert os.listdir(tmp_path) == ["d"]


def test_one_failed_delete_keeps_no_other_from_being_tried(configuration, bucket, s3, tmp_path) -> None:
    (s3.root / bucket / "a").write_bytes(b"x")
    (tmp_path / "directory").mkdir()
    for name in ("file", "b"):
        (tmp_path / name).write_bytes(b"x")
    uris = [
        f"{tmp_path}/directory",
        f"{tmp_path}/b",
        "s3://no-such-bucket/a",
        f"s3://{bucket}/a",
        f"{tmp_path}/file/below",
    ]
    with Objects(configuration) as objects, pytest.raises(DestinationError, match=f"{tmp_path}/directory"):
        objects.delete(uris)
    assert sorted(os.listdir(tmp_path)) == ["directory", "file"]
    assert not list((s3.root / bucket).iterdir())
