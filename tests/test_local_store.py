from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statelift.backends.errors import DestinationError, NoSpace
from statelift.backends.options import Configuration
from statelift.transfer.handles import KeyGroupRange
from statelift.transfer.spark.local_store import MARK, LocalStore, Version, local_root

ALL = KeyGroupRange(0, 127)
BASE = "s3://state/job"


def version(checkpoint_id: int = 1, key_groups: KeyGroupRange = ALL, digest: str = "") -> Version:
    return Version(BASE, checkpoint_id, digest or f"{checkpoint_id:064x}", key_groups)


def filling(content: bytes = b"rows", seen: list[int] | None = None) -> Callable[[Path], dict[str, Any]]:
    def fill(directory: Path) -> dict[str, Any]:
        if seen is not None:
            seen.append(1)
        (directory / "000012.sst").write_bytes(content)
        (directory / "MANIFEST-000001").write_bytes(b"manifest of " + content)
        return {"files": 2}

    return fill


def names(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


def test_a_version_is_restored_once(tmp_path: Path) -> None:
    store, seen = LocalStore(tmp_path), list[int]()
    for expected in (True, False, False):
        with store.working_copy(version(), filling(seen=seen)) as copy:
            assert (copy.is_new, copy.facts) == (expected, {"files": 2})
            assert (copy.directory / "000012.sst").read_bytes() == b"rows"
    assert len(seen) == 1


def test_a_working_copy_is_writable_and_leaves_the_pristine_one_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with store.working_copy(version(), filling()) as copy:
        assert names(copy.directory) == {"000012.sst", "MANIFEST-000001"}
        assert (copy.directory / "000012.sst").stat().st_nlink == 2
        with (copy.directory / "MANIFEST-000001").open("ab") as manifest:
            manifest.write(b" and more")
        (copy.directory / "000012.sst").unlink()
        directory = copy.directory
    assert not directory.exists()
    with store.present(version(), filling()) as pristine:
        assert not pristine.is_new
        assert (pristine.directory / "MANIFEST-000001").read_bytes() == b"manifest of rows"
        assert (pristine.directory / "000012.sst").read_bytes() == b"rows"


def test_two_working_copies_of_one_version_are_apart(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with store.working_copy(version(), filling()) as one, store.working_copy(version(), filling()) as other:
        assert one.directory != other.directory


def test_who_wants_the_same_version_at_the_same_time_waits_for_it(tmp_path: Path) -> None:
    seen: list[int] = []
    entered = threading.Event()

    def slowly(directory: Path) -> dict[str, Any]:
        entered.set()
        time.sleep(0.3)
        return filling(seen=seen)(directory)

    results: list[bool] = []

    def task() -> None:
        # Each task of an executor is a process with a store of its own.
        with LocalStore(tmp_path).working_copy(version(), slowly) as copy:
            results.append(copy.is_new)

    threads = [threading.Thread(target=task) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert entered.wait(5)
    for thread in threads:
        thread.join(10)
    assert sorted(results) == [False, False, False, True]
    assert len(seen) == 1


def test_other_ranges_do_not_wait(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    low, high = version(key_groups=KeyGroupRange(0, 63)), version(key_groups=KeyGroupRange(64, 127))
    with store.present(low, filling()), store.present(high, filling()) as other:
        assert other.is_new


def _die_while_filling(root: Path, started: Any) -> None:
    def fill(directory: Path) -> dict[str, Any]:
        (directory / "000012.sst").write_bytes(b"half")
        started.set()
        time.sleep(60)
        return {}

    with LocalStore(root).working_copy(version(), fill):
        pass


def test_what_a_killed_attempt_left_is_swept_and_the_next_one_succeeds(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    process = context.Process(target=_die_while_filling, args=(tmp_path, started))
    process.start()
    assert started.wait(30)
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    left = [*(tmp_path / "versions").iterdir(), *(tmp_path / "work").iterdir()]
    assert len(left) == 2
    with LocalStore(tmp_path).working_copy(version(), filling()) as copy:
        assert copy.is_new
        assert (copy.directory / "000012.sst").read_bytes() == b"rows"
    assert not any(each.exists() for each in left)
    assert names(tmp_path / "versions") == {version().name}
    assert names(tmp_path / "work") == set()


def test_a_failed_restore_leaves_nothing(tmp_path: Path) -> None:
    def fill(directory: Path) -> dict[str, Any]:
        (directory / "000012.sst").write_bytes(b"half")
        raise NoSpace("no space")

    with pytest.raises(NoSpace), LocalStore(tmp_path).working_copy(version(), fill):
        pass
    assert names(tmp_path / "versions") == names(tmp_path / "work") == set()


def _truncate(directory: Path) -> None:
    (directory / "000012.sst").write_bytes(b"row")


def _rewrite(directory: Path) -> None:
    found = (directory / "000012.sst").stat()
    (directory / "000012.sst").write_bytes(b"woes")
    os.utime(directory / "000012.sst", ns=(found.st_atime_ns, found.st_mtime_ns + 1))


def _remove(directory: Path) -> None:
    (directory / "000012.sst").unlink()


def _unmark(directory: Path) -> None:
    (directory / MARK).unlink()


def _tear_mark(directory: Path) -> None:
    mark = (directory / MARK).read_bytes()
    (directory / MARK).write_bytes(mark[: len(mark) // 2])


@pytest.mark.parametrize("damage", [_truncate, _rewrite, _remove, _unmark, _tear_mark])
def test_a_damaged_version_is_restored_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    store = LocalStore(tmp_path)
    with store.present(version(), filling()) as pristine:
        damage(pristine.directory)
    with store.working_copy(version(), filling()) as copy:
        assert copy.is_new
        assert (copy.directory / "000012.sst").read_bytes() == b"rows"


def test_a_checkpoint_written_again_under_the_same_name_is_another_version(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with store.present(version(1, digest="a" * 64), filling(b"old")):
        pass
    with store.present(version(1, digest="b" * 64), filling(b"new")) as found:
        assert found.is_new
        assert (found.directory / "000012.sst").read_bytes() == b"new"


def test_the_mark_tells_what_the_directory_is_a_copy_of(tmp_path: Path) -> None:
    with LocalStore(tmp_path).present(version(7), filling()) as found:
        mark = json.loads((found.directory / MARK).read_bytes())
    assert mark["checkpoint"] == "s3://state/job/chk-7"
    assert mark["metadata"] == version(7).digest
    assert mark["key_groups"] == [0, 127]
    assert {file["name"]: file["size"] for file in mark["files"]} == {"000012.sst": 4, "MANIFEST-000001": 16}


def test_only_the_newest_versions_stay(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, keep=2)
    for checkpoint_id in range(1, 6):
        with store.present(version(checkpoint_id), filling()):
            pass
    assert names(tmp_path / "versions") == {version(4).name, version(5).name}


def test_versions_of_another_parallelism_go_once_they_are_old(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, keep=1)
    halves = [KeyGroupRange(0, 63), KeyGroupRange(64, 127)]
    with store.present(version(1), filling()):
        pass
    for half in halves:
        with store.present(version(2, half), filling()):
            pass
    assert names(tmp_path / "versions") == {version(2, half).name for half in halves}


def test_a_version_in_use_is_not_discarded(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, keep=1)
    with store.present(version(1), filling()) as used, store.present(version(2, KeyGroupRange(0, 63)), filling()):
        assert (used.directory / "000012.sst").read_bytes() == b"rows"
    assert version(1).name in names(tmp_path / "versions")


def test_another_jobs_versions_are_left_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, keep=1)
    other = Version("s3://state/other", 1, "c" * 64, ALL)
    with store.present(other, filling()):
        pass
    for checkpoint_id in (1, 2):
        with store.present(version(checkpoint_id), filling()):
            pass
    assert names(tmp_path / "versions") == {other.name, version(2).name}


def test_a_root_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DestinationError, match=str(tmp_path / "file")):
        LocalStore(tmp_path / "file")


def test_the_root_is_the_option_else_the_executors_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/disk1/blocks,/disk2/blocks")
    assert local_root(Configuration({"state.local-dir": "/mnt/nvme"})) == Path("/mnt/nvme")
    roots = {str(local_root(Configuration(), f"slot-{number}")) for number in range(20)}
    assert roots == {"/disk1/blocks/statelift", "/disk2/blocks/statelift"}
    assert local_root(Configuration(), "slot-1") == local_root(Configuration(), "slot-1")


def test_without_spark_the_root_belongs_to_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert local_root(Configuration()) == tmp_path / f"statelift-{os.getuid()}" / "statelift"
