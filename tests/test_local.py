"""The local backend: the contract, and the ways it has to copy a file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from statelift.backends import local
from statelift.backends.checksums import crc64nvme
from statelift.backends.closeables import CloseableRegistry
from statelift.backends.errors import AccessDenied, CopyFailed, IntegrityError, SourceChanged, UsageError
from statelift.backends.local import LocalFileSystem
from statelift.backends.options import Configuration
from statelift.backends.report import CopiedFile
from statelift.backends.request import CopyRequest

from .contract import Contract, Traits, make_bytes
from .servers.disks import small_disk

MIB = 1 << 20


class TestLocal(Contract):
    traits = Traits(pairs=frozenset({"local"}), methods=frozenset({"local", "reflink", "hard-link"}))

    def make(self, configuration: Configuration) -> LocalFileSystem:
        return LocalFileSystem(configuration)


class TestLocalWithoutLinks(TestLocal):
    traits = Traits(pairs=frozenset({"local"}), methods=frozenset({"local", "reflink"}))
    options: ClassVar[dict[str, object]] = {"local.link": "none", "transfer.fsync": True, "transfer.threads": 1}


def copy_one(source: Path | str, destination: Path, *, link: str = "*.sst", **known: int) -> CopiedFile:
    file_system = LocalFileSystem(Configuration({"local.link": link}, environ={}))
    report = file_system.copy_files([CopyRequest(str(source), str(destination), **known)], CloseableRegistry())
    return report.files[0]


def failure_of(source: Path | str, destination: Path, **known: int) -> BaseException:
    with pytest.raises(CopyFailed) as caught:
        copy_one(source, destination, **known)
    return caught.value.errors[0]


def is_same(one: Path, other: Path) -> bool:
    return one.stat().st_ino == other.stat().st_ino


@pytest.fixture
def sst(tmp_path: Path) -> Path:
    path = tmp_path / "1.sst"
    path.write_bytes(make_bytes(3 * MIB))
    return path


def test_links_a_file_that_never_changes(sst: Path, tmp_path: Path) -> None:
    data = sst.read_bytes()
    copied = copy_one(sst, tmp_path / "db" / "2.sst", size=len(data), crc64nvme=crc64nvme(data))
    assert (copied.method, copied.bytes, copied.verified) == ("hard-link", len(data), "crc64nvme")
    assert is_same(sst, tmp_path / "db" / "2.sst")


@pytest.mark.parametrize(
    ("source", "destination", "link"),
    [
        ("MANIFEST-1", "MANIFEST-1", "*.sst"),
        ("1.sst", "CURRENT", "*.sst"),
        ("CURRENT", "1.sst", "*.sst"),
        ("1.sst", "1.sst", "none"),
        ("1.sst", "1.sst", "*.blob, MANIFEST-*"),
    ],
)
def test_gives_all_other_files_bytes_of_their_own(tmp_path: Path, source: str, destination: str, link: str) -> None:
    (tmp_path / source).write_bytes(b"bytes")
    (tmp_path / "to").mkdir()
    copied = copy_one(tmp_path / source, tmp_path / "to" / destination, link=link)
    assert copied.method in {"local", "reflink"}
    assert not is_same(tmp_path / source, tmp_path / "to" / destination)
    assert (tmp_path / "to" / destination).read_bytes() == b"bytes"


def test_links_by_any_pattern_of_the_option(tmp_path: Path) -> None:
    (tmp_path / "1.blob").write_bytes(b"bytes")
    assert copy_one(tmp_path / "1.blob", tmp_path / "2.blob", link="*.sst, *.blob").method == "hard-link"


def test_a_range_is_never_linked(sst: Path, tmp_path: Path) -> None:
    copied = copy_one(sst, tmp_path / "2.sst", offset=1, length=3 * MIB - 1)
    assert copied.method == "local"
    assert (tmp_path / "2.sst").read_bytes() == sst.read_bytes()[1:]


def test_a_range_that_is_the_whole_file_is_linked(sst: Path, tmp_path: Path) -> None:
    assert copy_one(sst, tmp_path / "2.sst", size=3 * MIB, offset=0, length=3 * MIB).method == "hard-link"


def test_links_what_a_symbolic_link_leads_to(sst: Path, tmp_path: Path) -> None:
    (tmp_path / "link.sst").symlink_to(sst)
    assert copy_one(tmp_path / "link.sst", tmp_path / "2.sst").method == "hard-link"
    assert not (tmp_path / "2.sst").is_symlink()
    assert is_same(sst, tmp_path / "2.sst")


def test_a_link_onto_a_link_of_the_same_file_leaves_one_file(sst: Path, tmp_path: Path) -> None:
    os.link(sst, tmp_path / "2.sst")
    assert copy_one(sst, tmp_path / "2.sst").method == "hard-link"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["1.sst", "2.sst"]


def test_a_linked_file_of_the_wrong_checksum_is_not_published(sst: Path, tmp_path: Path) -> None:
    error = failure_of(sst, tmp_path / "2.sst", crc64nvme=1)
    assert isinstance(error, IntegrityError)
    assert not (tmp_path / "2.sst").exists()


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "other", 32 * MIB) as disk:
        yield disk


def test_copies_to_another_disk(sst: Path, other_disk: Path) -> None:
    copied = copy_one(sst, other_disk / "1.sst", crc64nvme=crc64nvme(sst.read_bytes()))
    assert copied.method == "local"
    assert (other_disk / "1.sst").read_bytes() == sst.read_bytes()
    back = copy_one(other_disk / "1.sst", sst.parent / "back.sst", offset=4097)
    assert back.bytes == 3 * MIB - 4097
    assert (sst.parent / "back.sst").read_bytes() == sst.read_bytes()[4097:]


@pytest.mark.parametrize("offset", [0, 4097])
@pytest.mark.parametrize("broken", [(), ("copy_file_range",), ("copy_file_range", "sendfile")])
def test_every_way_copies_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[str, ...], offset: int
) -> None:
    # Which ways a kernel has cannot be chosen here: the ways before the one that is tried refuse.
    def refuse(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    for name in broken:
        monkeypatch.setattr(local.os, name, refuse)
    data = make_bytes(20 * MIB + 3)
    (tmp_path / "a").write_bytes(data)
    assert copy_one(tmp_path / "a", tmp_path / "b", offset=offset).method in {"local", "reflink"}
    assert (tmp_path / "b").read_bytes() == data[offset:]


def test_the_next_way_goes_on_where_one_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(local, "_reflink", lambda *_: False)
    for name in ("copy_file_range", "sendfile"):
        call = getattr(os, name)

        def once(*arguments: int, name: str = name, call: object = call) -> int:
            calls.append(name)
            return call(*arguments) if calls.count(name) == 1 else 0  # type: ignore[operator]

        monkeypatch.setattr(local.os, name, once)
    data = make_bytes(20 * MIB + 3)
    (tmp_path / "a").write_bytes(data)
    copy_one(tmp_path / "a", tmp_path / "b", crc64nvme=crc64nvme(data))
    assert (tmp_path / "b").read_bytes() == data
    assert calls == ["copy_file_range", "copy_file_range", "sendfile", "sendfile"]


@pytest.fixture
def reflinking_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that has reflinks, where one can be made."""
    image, mounted = tmp_path / "image", tmp_path / "mounted"
    with image.open("wb") as file:
        file.truncate(512 * MIB)
    mounted.mkdir()
    for command in (["mkfs.xfs", "-q", "-m", "reflink=1", image], ["mkfs.btrfs", "-q", image]):
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            subprocess.run(["mount", "-o", "loop", image, mounted], check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.CalledProcessError):
            continue
        yield mounted
        subprocess.run(["umount", "-l", mounted], check=True, timeout=60)
        return
    pytest.skip("no XFS or Btrfs can be made and mounted here")


def test_reflinks_where_the_disk_can(reflinking_disk: Path) -> None:
    data = make_bytes(3 * MIB)
    (reflinking_disk / "a").write_bytes(data)
    copied = copy_one(reflinking_disk / "a", reflinking_disk / "b", crc64nvme=crc64nvme(data))
    assert copied.method == "reflink"
    assert not is_same(reflinking_disk / "a", reflinking_disk / "b")
    assert (reflinking_disk / "b").read_bytes() == data


@pytest.mark.parametrize("change", ["grow", "shrink", "overwrite"])
def test_a_source_that_changes_while_it_is_read_is_an_error(tmp_path: Path, change: str) -> None:
    source, size = tmp_path / "a", 40 * MIB
    source.write_bytes(bytes(size))
    os.utime(source, (1, 1))

    def touch(request: CopyRequest, count: int) -> None:
        if change == "overwrite":
            with source.open("r+b") as file:
                file.write(b"new")
        else:
            os.truncate(source, size + 1 if change == "grow" else 16 * MIB)

    file_system = LocalFileSystem(Configuration(environ={}))
    with pytest.raises(CopyFailed) as caught:
        file_system.copy_files([CopyRequest(str(source), str(tmp_path / "b"))], CloseableRegistry(), progress=touch)
    assert isinstance(caught.value.errors[0], SourceChanged)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("name", ["a", "./a", "link", "up/../a"])
def test_a_file_is_not_copied_onto_itself(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").write_bytes(b"bytes")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "up").mkdir()
    error = failure_of(f"{tmp_path}/{name}", tmp_path / "a", offset=1)
    assert isinstance(error, UsageError)
    assert (tmp_path / "a").read_bytes() == b"bytes"


def test_a_pipe_is_no_source(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert isinstance(failure_of(tmp_path / "pipe", tmp_path / "b"), AccessDenied)


def test_a_file_shorter_than_its_file_system_says_is_not_published(tmp_path: Path) -> None:
    # Files of sysfs claim a page, whatever they hold.
    source = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not source.exists() or source.stat().st_size <= len(source.read_bytes()):
        pytest.skip("no such file in sysfs")
    assert isinstance(failure_of(source, tmp_path / "b"), IntegrityError)
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_a_size_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    error = failure_of("/proc/self/status", tmp_path / "b")
    assert isinstance(error, IntegrityError)
    assert "/proc/self/status has bytes, but its file system gives it no size" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_zero_bytes_of_a_missing_file_are_no_file(tmp_path: Path) -> None:
    assert isinstance(failure_of(tmp_path / "none", tmp_path / "b", length=0), FileNotFoundError)


def test_bytes_are_counted_as_moved_only_where_they_were(sst: Path, tmp_path: Path) -> None:
    file_system = LocalFileSystem(Configuration(environ={}))
    requests = [CopyRequest(str(sst), str(tmp_path / name)) for name in ("2.sst", "CURRENT")]
    report = file_system.copy_files(requests, CloseableRegistry())
    assert report.bytes == 6 * MIB
    assert report.bytes_moved == 3 * MIB * report.methods.get("local", 0)
