"""From handles to files: all of them or none, and nothing of anyone else's lost."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from pathlib import Path

import pytest

from statelift.backends.checksums import crc64nvme
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import (
    CheckpointError,
    CopyCancelled,
    CopyFailed,
    DestinationError,
    IntegrityError,
    NoSpace,
    SourceNotFound,
    UsageError,
)
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.downloader import Download, StateDownloader, plan
from statelift.transfer.file_systems import FileSystems
from statelift.transfer.handles import (
    DirectoryHandle,
    FileHandle,
    InMemoryHandle,
    RelativeFileHandle,
    SegmentHandle,
)

from .contract.places import BucketPlace, LocalPlace, make_bytes
from .servers.disks import small_disk


@pytest.fixture(params=["s3", "local"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> LocalPlace:
    """Where the checkpoint lies."""
    if request.param == "local":
        return LocalPlace(tmp_path / "checkpoints")
    return BucketPlace(request.getfixturevalue("s3").root / request.getfixturevalue("bucket"))


@pytest.fixture
def location(place: LocalPlace) -> CheckpointLocation:
    return CheckpointLocation(place.uri("job"), 7)


@pytest.fixture
def downloader(configuration):
    with FileSystems(configuration) as file_systems:
        yield StateDownloader(file_systems)


def put(place: LocalPlace, name: str, size: int = 3000, *, path: str | None = None) -> RelativeFileHandle:
    """A shared file of the checkpoint, and its handle."""
    data = make_bytes(size, len(name))
    place.put(f"job/shared/{path or name}", data)
    return RelativeFileHandle("shared", path or name, size, crc64nvme(data))


def tree(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_every_kind_of_handle(place, location, downloader, tmp_path) -> None:
    into = tmp_path / "a" / "b"
    shared = put(place, "shared-file")
    own, kept = make_bytes(100, 1), make_bytes(200, 2)
    place.put("job/chk-7/own", own)
    place.put("job/taskowned/kept", kept)
    elsewhere = place.uri("elsewhere")
    place.put("elsewhere", own)
    segment = shared_bytes = place.get("job/shared/shared-file")
    assert shared_bytes is not None
    assert segment is not None
    wanted = {
        "000001.sst": (shared, shared_bytes),
        "MANIFEST": (RelativeFileHandle("exclusive", "own", 100), own),
        "kept": (RelativeFileHandle("taskowned", "kept", 200), kept),
        "file": (FileHandle(elsewhere, 100, crc64nvme(own)), own),
        "CURRENT": (InMemoryHandle(b"MANIFEST\n"), b"MANIFEST\n"),
        "empty": (InMemoryHandle(b""), b""),
        "segment": (SegmentHandle(shared, 1000, 500, crc64nvme(segment[1000:1500])), segment[1000:1500]),
        "more/segment-of-nothing": (SegmentHandle(shared, 3000, 0), b""),
    }
    moved: dict[str, int] = {}

    def progress(request, count) -> None:
        moved[request.destination] = moved.get(request.destination, 0) + count

    downloads = [Download(handle, str(into / name)) for name, (handle, _) in wanted.items()]
    report = downloader.download(location, downloads, CloseableRegistry(), progress=progress)
    assert {name: (into / name).read_bytes() for name in wanted} == {name: data for name, (_, data) in wanted.items()}
    assert tree(into) == sorted([*wanted, "more"])
    assert report.bytes == sum(len(data) for _, data in wanted.values())
    assert report.methods["inline"] == 2
    assert {file.request.destination for file in report.files} == {str(into / name) for name in wanted}
    assert sum(moved.values()) == report.bytes


def test_nothing_to_download_is_no_work(location, downloader) -> None:
    assert downloader.download(location, [], CloseableRegistry()).files == ()


def failing(place: LocalPlace, into: Path) -> list[Download]:
    """Some good downloads and one of a missing file."""
    good = [Download(put(place, f"good-{index}"), str(into / f"{index}")) for index in range(6)]
    missing = Download(RelativeFileHandle("shared", "missing", 5), str(into / "deep" / "missing"))
    return [*good, Download(InMemoryHandle(b"x"), str(into / "inline")), missing]


def test_a_failure_leaves_no_partial_directory(place, location, downloader, tmp_path) -> None:
    with pytest.raises(CopyFailed, match=r"missing") as caught:
        downloader.download(location, failing(place, tmp_path / "new" / "er"), CloseableRegistry())
    assert [type(error) for error in caught.value.errors] == [SourceNotFound]
    assert not (tmp_path / "new").exists()


def test_a_failure_leaves_what_was_there_before(place, location, downloader, tmp_path) -> None:
    into = tmp_path / "was" / "there"
    into.mkdir(parents=True)
    (into / "mine").write_bytes(b"mine")
    with pytest.raises(CopyFailed):
        downloader.download(location, failing(place, into), CloseableRegistry())
    assert tree(tmp_path / "was") == ["there", "there/mine"]


def test_a_failure_leaves_what_another_put_into_our_directories(place, location, downloader, tmp_path) -> None:
    def progress(request, count) -> None:
        (tmp_path / "new").mkdir(exist_ok=True)
        (tmp_path / "new" / "theirs").write_bytes(b"theirs")

    with pytest.raises(CopyFailed):
        downloader.download(location, failing(place, tmp_path / "new" / "mine"), CloseableRegistry(), progress=progress)
    assert tree(tmp_path / "new") == ["theirs"]


def test_a_file_that_was_not_replaced_yet_stays(location, downloader, tmp_path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    with pytest.raises(CopyFailed):
        downloader.download(
            location, [Download(RelativeFileHandle("shared", "missing", 5), str(tmp_path / "old"))], CloseableRegistry()
        )
    assert (tmp_path / "old").read_bytes() == b"old"


def test_cancelling_leaves_no_partial_directory(place, location, downloader, tmp_path) -> None:
    closeables = CloseableRegistry()

    def progress(request, count) -> None:
        threading.Thread(target=closeables.close, args=["enough"]).start()
        time.sleep(0.05)

    downloads = [Download(put(place, f"{index}", 200_000), str(tmp_path / "new" / f"{index}")) for index in range(40)]
    with pytest.raises(CopyCancelled, match="enough"):
        downloader.download(location, downloads, closeables, progress=progress)
    assert not (tmp_path / "new").exists()
    assert not [each for each in threading.enumerate() if each.name.startswith("statelift")]


@pytest.mark.parametrize("damage", ["same-size", "short", "long"])
def test_damage_is_noticed_and_not_kept(damage: str, place, location, configuration, tmp_path) -> None:
    # A hard link reads nothing, so that only a copy can compare checksums.
    copying = configuration.with_arguments({"state.force-copy": "true"})
    handle = put(place, "file")
    data = bytearray(place.get("job/shared/file") or b"")
    data[1234] ^= 1
    place.put(
        "job/shared/file", {"same-size": bytes(data), "short": bytes(data[:-1]), "long": bytes(data) + b"x"}[damage]
    )
    with FileSystems(copying) as systems, pytest.raises(CopyFailed, match="file") as caught:
        wanted = [Download(handle, str(tmp_path / "new" / "000001.sst"))]
        StateDownloader(systems).download(location, wanted, CloseableRegistry())
    assert isinstance(caught.value.errors[0], IntegrityError)
    assert not (tmp_path / "new").exists()


def test_a_moved_checkpoint_downloads_from_where_it_is(place, location, downloader, tmp_path) -> None:
    data = make_bytes(3000, 4)
    place.put("moved/shared/x", data)
    handle = RelativeFileHandle("shared", "x", 3000, crc64nvme(data), etag="of-the-old-place")
    moved = dataclasses.replace(location, base=place.uri("moved"))
    downloader.download(moved, [Download(handle, str(tmp_path / "x"))], CloseableRegistry())
    assert (tmp_path / "x").read_bytes() == data


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "a/../../b", "s3://other/key", "..\\x"])
def test_a_path_that_climbs_out_is_refused_before_anything_is_copied(
    path: str, place, location, downloader, tmp_path
) -> None:
    good = Download(put(place, "good"), str(tmp_path / "new" / "good"))
    with pytest.raises(CheckpointError, match="leads out of its directory"):
        downloader.download(
            location,
            [good, Download(RelativeFileHandle("shared", path, 5), str(tmp_path / "new" / "x"))],
            CloseableRegistry(),
        )
    assert not (tmp_path / "new").exists()


def test_what_makes_no_sense_is_refused(location, downloader, tmp_path) -> None:
    twice = [Download(InMemoryHandle(b"a"), str(tmp_path / "x")), Download(InMemoryHandle(b"b"), str(tmp_path / "x"))]
    with pytest.raises(UsageError, match="two pieces of state would become"):
        downloader.download(location, twice, CloseableRegistry())
    with pytest.raises(UsageError, match="is a directory"):
        downloader.download(location, [Download(DirectoryHandle("s3://b/d"), str(tmp_path / "d"))], CloseableRegistry())
    assert tree(tmp_path) == []


def test_a_destination_that_cannot_be_written(place, location, downloader, tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    for handle in (put(place, "good"), InMemoryHandle(b"x")):
        with pytest.raises(CopyFailed, match="cannot write") as caught:
            downloader.download(location, [Download(handle, str(tmp_path / "file" / "x"))], CloseableRegistry())
        assert isinstance(caught.value.errors[0], DestinationError)
    assert tree(tmp_path) == ["checkpoints", *[]] or (tmp_path / "file").read_bytes() == b"in the way"


def test_a_full_disk_ends_the_download_and_is_left_empty(place, location, downloader, tmp_path) -> None:
    downloads = [put(place, f"{index}", 1 << 20) for index in range(6)]
    with small_disk(tmp_path / "disk", 3 << 20) as disk:
        with pytest.raises(CopyFailed) as caught:
            downloader.download(
                location,
                [Download(handle, str(disk / "new" / handle.path)) for handle in downloads],
                CloseableRegistry(),
            )
        assert isinstance(caught.value.errors[0], NoSpace)
        assert os.listdir(disk) == []


def test_a_closed_registry_downloads_nothing(place, location, downloader, tmp_path) -> None:
    closeables = CloseableRegistry()
    closeables.close("before")
    for handle in (put(place, "good"), InMemoryHandle(b"x")):
        with pytest.raises(CopyCancelled, match="before"):
            downloader.download(location, [Download(handle, str(tmp_path / "new" / "x"))], closeables)
    assert not (tmp_path / "new").exists()


def test_a_hundred_thousand_handles_plan_in_seconds(configuration) -> None:
    location = CheckpointLocation("s3://state/job", 7)
    downloads = [
        Download(RelativeFileHandle("shared", f"{index:036}", index, index), f"/data/db/{index:06}.sst")
        for index in range(100_000)
    ]
    with FileSystems(configuration) as file_systems:
        started = time.process_time()
        inline, requests = plan(location, downloads)
        groups, refused = file_systems._grouped(requests)
        spent = time.process_time() - started
    assert (len(inline), len(requests), len(groups), refused) == (0, 100_000, 1, [])
    assert spent < 8  # the bound is 2 s; other work shares this processor
