"""The transfer strategy, row by row of its two decision tables."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelift.transfer.files import Ownership
from statelift.transfer.handles import FileHandle, InMemoryHandle, RelativeFileHandle, SegmentHandle
from statelift.transfer.strategy import (
    RESTORE_TABLE,
    SNAPSHOT_TABLE,
    ClaimMode,
    Method,
    Restore,
    Sharing,
    Snapshot,
    plan_restore_transfer,
    plan_snapshot,
)

SHARED = "s3://bucket/job/shared"
REUSING = Snapshot(working=f"{SHARED}/op-0", target="s3://bucket/job/chk-1", shared=SHARED)
CLAIMED = Restore(
    working=f"{SHARED}/op-0", sources=("s3://bucket/old/shared",), own_shared=SHARED, claim=ClaimMode.CLAIM
)
FILE = FileHandle("s3://bucket/old/shared/x", 10)


@pytest.mark.parametrize(
    ("changes", "reuses", "reason"),
    [
        ({"force_copy": True}, False, "copying is forced"),
        ({"sharing": Sharing.NO_SHARING}, False, "shares no files"),
        ({"sharing": Sharing.FORWARD}, False, "shares no files"),
        ({"working": None}, False, "local to the worker"),
        ({"merging": True}, False, "merged"),
        ({"working": "s3://other/job/shared/op-0"}, False, "different stores"),
        ({"working": "/job/shared/op-0"}, False, "different stores"),
        ({"working": "s3://bucket/job/db"}, False, "not below"),
        ({"working": "s3://bucket/job/shared-not/op"}, False, "not below"),
        ({}, True, "below the checkpoint's shared directory"),
        ({"working": SHARED}, True, "below the checkpoint's shared directory"),
    ],
)
def test_snapshot_table(changes: dict[str, object], reuses: bool, reason: str) -> None:
    plan = plan_snapshot(dataclasses.replace(REUSING, **changes))  # type: ignore[arg-type]
    assert (plan.decision.method is Method.REUSE) == reuses
    assert reason in plan.decision.reason


@pytest.mark.parametrize(
    ("changes", "reuses", "reason"),
    [
        ({"force_copy": True}, False, "copying is forced"),
        ({"working": None}, False, "local to the worker"),
        ({"working": None, "claim": ClaimMode.NO_CLAIM}, False, "local to the worker"),
        ({"sources": ("s3://other/old/shared",)}, False, "different stores"),
        ({"sources": ("/old/shared",)}, False, "different stores"),
        ({"sources": (SHARED, "s3://other/old/shared")}, False, "different stores"),
        ({"claim": ClaimMode.NO_CLAIM}, False, "not claimed"),
        ({"claim": ClaimMode.NO_CLAIM, "sources": (SHARED, "s3://bucket/old/shared")}, False, "not claimed"),
        ({"claim": ClaimMode.NO_CLAIM, "sources": (SHARED,)}, True, "this job's own"),
        ({}, True, "is claimed"),
        ({"claim": ClaimMode.LEGACY}, True, "legacy"),
        ({"sources": (SHARED,)}, True, "is claimed"),
    ],
)
def test_restore_table(changes: dict[str, object], reuses: bool, reason: str) -> None:
    plan = plan_restore_transfer(dataclasses.replace(CLAIMED, **changes))  # type: ignore[arg-type]
    assert (plan.decision.method is Method.REUSE) == reuses
    assert reason in plan.decision.reason


@pytest.mark.parametrize(("paths_copy", "method"), [(True, Method.PATHS_COPY), (False, Method.BYTES_COPY)])
def test_what_is_not_reused_is_copied_by_paths_where_that_works(paths_copy: bool, method: Method) -> None:
    copied = dataclasses.replace(REUSING, sharing=Sharing.NO_SHARING, paths_copy=paths_copy)
    assert plan_snapshot(copied).for_file("1.sst").method is method
    restored = dataclasses.replace(CLAIMED, claim=ClaimMode.NO_CLAIM, paths_copy=paths_copy)
    assert plan_restore_transfer(restored).for_file("1.sst", FILE).method is method
    assert plan_snapshot(dataclasses.replace(copied, merging=True)).copy_method is Method.BYTES_COPY


@pytest.mark.parametrize(
    ("ownership", "method"),
    [
        (Ownership.PRIVATE, Method.PATHS_COPY),
        (Ownership.SHAREABLE, Method.REUSE),
        (Ownership.NOT_OWNED, Method.REUSE),
    ],
)
def test_a_files_owner_decides_on_snapshot(ownership: Ownership, method: Method) -> None:
    assert plan_snapshot(REUSING).for_file("1.sst", ownership=ownership).method is method


@pytest.mark.parametrize(
    ("name", "handle", "method"),
    [
        ("1.sst", FILE, Method.REUSE),
        ("1.sst", RelativeFileHandle("shared", "x", 10), Method.REUSE),
        ("1.sst", SegmentHandle(FILE, 2, 3), Method.REUSE),
        ("1.sst", InMemoryHandle(b"x"), Method.BYTES_COPY),
        ("MANIFEST-1", FILE, Method.PATHS_COPY),
        ("CURRENT", InMemoryHandle(b"x"), Method.BYTES_COPY),
    ],
)
def test_a_files_handle_and_name_decide_on_restore(name: str, handle, method: Method) -> None:
    assert plan_restore_transfer(CLAIMED).for_file(name, handle).method is method


def test_a_hard_link_takes_the_place_of_a_copy_on_one_disk() -> None:
    plan = plan_restore_transfer(dataclasses.replace(CLAIMED, working=None))
    assert plan.for_file("1.sst", FILE, link=True).method is Method.REUSE
    assert plan.for_file("MANIFEST-1", FILE, link=True).method is Method.PATHS_COPY
    assert plan.for_file("1.sst", FILE).method is Method.PATHS_COPY


snapshots = st.builds(
    Snapshot,
    working=st.sampled_from([None, f"{SHARED}/op", "s3://bucket/db", "/db"]),
    target=st.just("s3://bucket/job/chk-1"),
    shared=st.just(SHARED),
    sharing=st.sampled_from(Sharing),
    paths_copy=st.booleans(),
    merging=st.booleans(),
    force_copy=st.booleans(),
)
restores = st.builds(
    Restore,
    working=st.sampled_from([None, f"{SHARED}/op", "/db"]),
    sources=st.lists(st.sampled_from([SHARED, "s3://bucket/old/shared", "/old"]), min_size=1).map(tuple),
    own_shared=st.just(SHARED),
    claim=st.sampled_from(ClaimMode),
    paths_copy=st.booleans(),
    force_copy=st.booleans(),
)


@given(snapshots)
def test_a_snapshot_reuses_only_when_no_row_forbids_it(snapshot: Snapshot) -> None:
    reasons = [reason for applies, reason in SNAPSHOT_TABLE if applies(snapshot)]
    decision = plan_snapshot(snapshot).decision
    assert (decision.method is Method.REUSE) == (not reasons)
    assert not reasons or decision.reason == reasons[0]


@given(restores)
def test_a_restore_reuses_only_when_no_row_forbids_it(restore: Restore) -> None:
    reasons = [reason for applies, reason in RESTORE_TABLE if applies(restore)]
    decision = plan_restore_transfer(restore).decision
    assert (decision.method is Method.REUSE) == (not reasons)
    assert not reasons or decision.reason == reasons[0]


def test_a_database_of_real_files_copies_a_part_of_a_file_and_rows_out() -> None:
    plan = plan_restore_transfer(dataclasses.replace(CLAIMED, real_files=True))
    assert plan.for_file("1.sst", SegmentHandle(FILE, 2, 3), link=True).method is Method.PATHS_COPY
    assert plan.for_file("1.sst", FILE).method is Method.REUSE
    assert plan.for_file("part-0.parquet", FILE, link=True).method is Method.PATHS_COPY


@pytest.mark.parametrize("changes", [{"force_copy": True}, {"sharing": Sharing.NO_SHARING}, {"merging": True}])
def test_a_snapshot_that_must_be_its_own_is_not_linked(changes: dict[str, object]) -> None:
    plan = plan_snapshot(dataclasses.replace(REUSING, **changes))  # type: ignore[arg-type]
    assert plan.for_file("1.sst", link=True).method is not Method.REUSE
