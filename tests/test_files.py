"""The file manager: link, rename, delete, ownership, and the fsspec view."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from statelift.backends.errors import DestinationError, SourceNotFound, UsageError
from statelift.transfer.files import FileManager, Ownership
from statelift.transfer.files.mapping import normal
from statelift.transfer.files.view import LogicalFileSystem
from statelift.transfer.handles import FileHandle, SegmentHandle


@pytest.fixture
def manager(tmp_path: Path) -> FileManager:
    return FileManager(fsspec.filesystem("file"), str(tmp_path / "working"))


def write(manager: FileManager, path: str, data: bytes = b"data") -> str:
    file = manager.create(path)
    Path(file.path).write_bytes(data)
    return file.path


def checkpoint_file(tmp_path: Path, data: bytes = b"restored") -> FileHandle:
    path = tmp_path / "shared" / "a-uuid"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return FileHandle(str(path), len(data))


def test_new_files_are_named_by_uuid_and_owned_by_kind(manager: FileManager) -> None:
    sst = manager.create("/db/000001.sst")
    manifest = manager.create("/db/MANIFEST-000002")
    assert sst.ownership is Ownership.SHAREABLE
    assert manifest.ownership is Ownership.PRIVATE
    assert "000001" not in sst.path
    assert os.path.dirname(manifest.path) == manager.private_directory


def test_nested_links_share_one_file_that_goes_with_its_last_path(manager: FileManager) -> None:
    physical = write(manager, "/db/1.sst")
    assert manager.link("/db/1.sst", "/cp/1.sst") == 2
    assert manager.link("/cp/1.sst", "/cp2/1.sst") == 3
    assert manager.link("/db/1.sst", "/cp/1.sst") == -1
    assert manager.link("/db/1.sst", "/db/1.sst") == -1
    with pytest.raises(SourceNotFound, match="the database has no file"):
        manager.link("/db/9.sst", "/cp/9.sst")
    manager.delete("/db/1.sst")
    manager.delete("/cp2/1.sst")
    assert os.path.exists(physical)
    manager.delete("/cp/1.sst")
    assert not os.path.exists(physical)


def test_rename_moves_no_physical_file_and_releases_what_it_replaces(manager: FileManager) -> None:
    first, second = write(manager, "/db/1.sst"), write(manager, "/db/2.sst")
    manager.rename("/db/1.sst", "/db/2.sst")
    assert os.path.exists(first)
    assert not os.path.exists(second)
    manager.rename("/db", "/other/place")
    assert manager.mapping.paths() == ["/other/place/2.sst"]
    with pytest.raises(UsageError, match="into itself"):
        manager.rename("/other", "/other/deeper")


def test_deleting_a_directory_needs_recursive(manager: FileManager) -> None:
    physical = write(manager, "/db/1.sst")
    with pytest.raises(SourceNotFound):
        manager.delete("/db")
    manager.delete("/db", recursive=True)
    assert not os.path.exists(physical)
    assert not manager.exists("/db")


def test_creating_over_another_file_needs_overwrite(manager: FileManager) -> None:
    old = write(manager, "/db/1.sst")
    with pytest.raises(DestinationError, match="exists already"):
        manager.create("/db/1.sst")
    manager.create("/db/1.sst", overwrite=True)
    assert not os.path.exists(old)


def test_a_restored_file_is_never_deleted_by_the_worker(manager: FileManager, tmp_path: Path) -> None:
    handle = checkpoint_file(tmp_path)
    manager.restore("/db/1.sst", handle)
    manager.restore("/db/1.sst", handle)
    assert manager.mapping.get("/db/1.sst").references == 1
    manager.delete("/db/1.sst")
    manager.restore("/db/1.sst", handle)
    manager.close()
    assert Path(handle.uri).read_bytes() == b"restored"


def test_handing_over_is_one_way(manager: FileManager) -> None:
    physical = write(manager, "/db/1.sst")
    write(manager, "/db/CURRENT")
    handle = FileHandle(physical, 4)
    manager.hand_over("/db/1.sst", handle)
    manager.hand_over("/db/1.sst", handle)
    with pytest.raises(UsageError, match="another handle"):
        manager.hand_over("/db/1.sst", FileHandle("/elsewhere", 4))
    with pytest.raises(UsageError, match="privately owned"):
        manager.hand_over("/db/CURRENT", FileHandle("/elsewhere", 4))
    manager.delete("/db/1.sst")
    assert os.path.exists(physical)


def test_closing_skips_what_it_does_not_own(manager: FileManager) -> None:
    kept, gone = write(manager, "/db/1.sst"), write(manager, "/db/2.sst")
    write(manager, "/db/CURRENT")
    manager.hand_over("/db/1.sst", FileHandle(kept, 4))
    manager.close()
    assert os.path.exists(kept)
    assert not os.path.exists(gone)
    assert os.listdir(manager.directory) == [os.path.basename(kept)]


def test_materializing_links_and_reads_nothing(manager: FileManager, tmp_path: Path) -> None:
    handle = checkpoint_file(tmp_path)
    manager.restore("/db/1.sst", handle)
    target = tmp_path / "real" / "1.sst"
    assert manager.materialize("/db/1.sst", str(target)) == "hard-link"
    assert os.stat(target).st_ino == os.stat(handle.uri).st_ino
    with pytest.raises(DestinationError):
        manager.materialize("/db/1.sst", str(target))


def test_a_part_of_a_file_is_not_materialized(manager: FileManager, tmp_path: Path) -> None:
    manager.restore("/db/1.sst", SegmentHandle(checkpoint_file(tmp_path), 1, 3))
    with pytest.raises(UsageError, match="is a part of"):
        manager.materialize("/db/1.sst", str(tmp_path / "real"))
    assert not (tmp_path / "real").exists()


def test_materializing_across_file_systems_is_a_symbolic_link(manager: FileManager, tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or os.stat(shm).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("needs a second file system")
    manager.restore("/db/1.sst", checkpoint_file(tmp_path))
    target = shm / f"statelift-test-{os.getpid()}.sst"
    try:
        assert manager.materialize("/db/1.sst", str(target)) == "symbolic-link"
        assert target.read_bytes() == b"restored"
    finally:
        target.unlink()


def test_the_view_reads_writes_lists_and_moves(manager: FileManager, tmp_path: Path) -> None:
    view = LogicalFileSystem(manager, skip_instance_cache=True)
    with view.open("/db/1.sst", "wb") as file:
        file.write(b"hello")
    view.mv("/db/1.sst", "/db/sub/2.sst")
    manager.restore("/db/3.sst", checkpoint_file(tmp_path))
    assert view.ls("/db", detail=False) == ["/db/3.sst", "/db/sub"]
    assert view.cat_file("/db/sub/2.sst") == b"hello"
    assert view.info("/db/3.sst")["size"] == 8
    assert view.exists("/db/sub")
    assert sorted(view.find("/")) == ["/db/3.sst", "/db/sub/2.sst"]
    view.rm("/db/sub", recursive=True)
    assert not view.exists("/db/sub/2.sst")
    with pytest.raises(FileNotFoundError):
        view.open("/db/none", "rb")


def test_the_view_reads_a_segment_as_a_file(manager: FileManager, tmp_path: Path) -> None:
    whole = checkpoint_file(tmp_path, b"0123456789")
    manager.restore("/db/1.sst", SegmentHandle(whole, 3, 4))
    manager.restore("/db/2.sst", SegmentHandle(whole, 7, 2))
    view = LogicalFileSystem(manager, skip_instance_cache=True)
    with view.open("/db/1.sst", "rb") as file:
        assert file.read() == b"3456"
        file.seek(-2, os.SEEK_END)
        assert file.read(10) == b"56"
    assert view.open("/db/2.sst", "rb").read() == b"78"


@pytest.mark.parametrize("bad", ["", "/", "a/../b", "..", "/x/../../etc/passwd"])
def test_paths_that_climb_or_name_nothing_are_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="not a path of the database"):
        normal(bad)


names = st.sampled_from([f"/d{d}/{n}{e}" for d in (1, 2) for n in (1, 2, 3) for e in (".sst", ".log")])


class FileManagerMachine(RuleBasedStateMachine):
    """Against a model: logical path → (physical id, owner) on a file system in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.filesystem = fsspec.filesystem("memory", skip_instance_cache=True)
        self.filesystem.store = {}
        self.filesystem.pseudo_dirs = [""]
        self.manager = FileManager(self.filesystem, "/working")
        self.model: dict[str, str] = {}
        self.not_owned: set[str] = set()
        self.count = 0

    def owned_and_alive(self) -> set[str]:
        return set(self.model.values()) - self.not_owned

    @rule(path=names, overwrite=st.booleans())
    def create(self, path: str, overwrite: bool) -> None:
        if path in self.model and not overwrite:
            with pytest.raises(DestinationError):
                self.manager.create(path)
            return
        file = self.manager.create(path, overwrite=overwrite)
        self.filesystem.pipe_file(file.path, b"x")
        self.model[path] = file.path

    @rule(path=names)
    def restore(self, path: str) -> None:
        if path in self.model:
            return
        self.count += 1
        source = f"/shared/{self.count}"
        self.filesystem.pipe_file(source, b"y")
        self.manager.restore(path, FileHandle(source, 1))
        self.model[path] = source
        self.not_owned.add(source)

    @rule(source=names, other=names)
    def link(self, source: str, other: str) -> None:
        if source not in self.model:
            with pytest.raises(SourceNotFound):
                self.manager.link(source, other)
        elif source == other or other in self.model:
            assert self.manager.link(source, other) == -1
        else:
            self.model[other] = self.model[source]
            same = list(self.model.values()).count(self.model[source])
            assert self.manager.link(source, other) == same

    @rule(source=names, other=names)
    def rename(self, source: str, other: str) -> None:
        if source not in self.model:
            if source != other:
                with pytest.raises(SourceNotFound):
                    self.manager.rename(source, other)
            return
        self.manager.rename(source, other)
        self.model[other] = self.model.pop(source)

    @rule(path=names)
    def delete(self, path: str) -> None:
        if path not in self.model:
            with pytest.raises(SourceNotFound):
                self.manager.delete(path)
            return
        self.manager.delete(path)
        del self.model[path]

    @rule(path=names)
    def hand_over(self, path: str) -> None:
        if path not in self.model:
            return
        file = self.manager.mapping.get(path)
        if file.ownership is Ownership.PRIVATE:
            with pytest.raises(UsageError):
                self.manager.hand_over(path, FileHandle(file.path, 1))
            return
        self.manager.hand_over(path, file.handle or FileHandle(file.path, 1))
        self.not_owned.add(file.path)

    @invariant()
    def the_map_is_the_models(self) -> None:
        assert {path: self.manager.mapping.get(path).path for path in self.manager.mapping.paths()} == self.model

    @invariant()
    def files_exist_exactly_while_needed(self) -> None:
        present = {path for path in self.filesystem.store if path.startswith(("/working", "/shared"))}
        assert present == self.owned_and_alive() | self.not_owned

    @invariant()
    def ownership_never_flows_back(self) -> None:
        for file in self.manager.mapping.files():
            assert (file.path in self.not_owned) == (file.ownership is Ownership.NOT_OWNED)


TestFileManagerMachine = FileManagerMachine.TestCase
TestFileManagerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
