from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelift.backends.errors import CheckpointError, UsageError
from statelift.transfer.handles import (
    KeyedStateHandle,
    KeyGroupRange,
    RelativeFileHandle,
    StateFile,
    key_groups_of,
)
from statelift.transfer.keyed.key_groups import prefix_of
from statelift.transfer.keyed.plan import plan_restore


def table(name: str, first: int, last: int, *, size: int = 10, level: int = 6, path: str | None = None) -> StateFile:
    handle = RelativeFileHandle("shared", path or f"{name}-{first}-{last}", size)
    return StateFile(name, handle, prefix_of(first) + b"a", prefix_of(last) + b"z", level)


def state(first: int, last: int, *files: StateFile, maximum: int = 128) -> KeyedStateHandle:
    return KeyedStateHandle(KeyGroupRange(first, last), maximum, "id", 7, files)


def reasons(plan) -> dict[str, str]:
    return {each.file.name: each.reason for _, each in plan.explain()}


def test_the_same_range_takes_every_file_as_it_is():
    plan = plan_restore([state(0, 63, table("1", 0, 127), table("2", 99, 100)), state(64, 127)], KeyGroupRange(0, 63))
    assert (plan.method, plan.bytes, plan.bytes_saved) == ("reopen", 20, 0)
    assert reasons(plan) == {"1": "the key groups are the same", "2": "the key groups are the same"}


def test_a_half_takes_the_files_that_overlap_it():
    files = [table(str(number), 16 * number, 16 * number + 15, size=number + 1) for number in range(8)]
    plan = plan_restore([state(0, 127, *files, table("8", 60, 70, size=100))], KeyGroupRange(0, 63))
    assert (plan.method, plan.bytes, plan.bytes_saved) == ("clip", 1 + 2 + 3 + 4 + 100, 5 + 6 + 7 + 8)
    assert reasons(plan)["0"] == "it has key groups 0 to 15"
    assert reasons(plan)["7"] == "it has key groups 112 to 127, outside 0 to 63"


def test_handles_of_others_are_left_alone():
    plan = plan_restore([state(0, 63, table("1", 0, 63)), state(64, 127, table("2", 64, 127))], KeyGroupRange(0, 31))
    assert (plan.method, plan.bytes, plan.bytes_saved) == ("clip", 10, 0)
    assert reasons(plan)["2"] == "its subtask has none of the key groups"


def test_a_file_without_a_key_range_is_needed():
    unknown = replace(table("1", 0, 0), smallest=None, largest=None)
    plan = plan_restore([state(0, 63, unknown), state(64, 127, table("2", 64, 127))], KeyGroupRange(0, 127))
    assert reasons(plan)["1"] == "its key range is not known"
    assert not plan.joins_as_it_is


def test_halves_that_share_a_file_join_as_they_are():
    shared = table("1", 0, 127, path="shared")
    halves = [state(0, 63, shared, table("2", 0, 63)), state(64, 127, shared, table("3", 64, 127))]
    plan = plan_restore(halves, KeyGroupRange(0, 127))
    assert plan.joins_as_it_is
    assert plan.bytes == 30  # the shared one once


def test_halves_that_do_not_share_every_file_do_not_join():
    reaching = table("1", 0, 127, path="shared")
    for other in (table("2", 64, 127), replace(reaching, level=5)):
        plan = plan_restore([state(0, 63, reaching), state(64, 127, other)], KeyGroupRange(0, 127))
        assert not plan.joins_as_it_is


def test_a_file_may_reach_where_nothing_is_wanted():
    reaching = table("1", 0, 127)
    plan = plan_restore(
        [state(0, 31, reaching), state(32, 63, table("2", 32, 63)), state(64, 127)], KeyGroupRange(16, 63)
    )
    assert not plan.joins_as_it_is
    plan = plan_restore(
        [state(0, 31, table("2", 0, 31)), state(32, 63, table("1", 32, 99)), state(64, 127)], KeyGroupRange(16, 63)
    )
    assert plan.joins_as_it_is


def test_a_neighbour_without_files_still_owns_its_key_groups():
    plan = plan_restore(
        [state(0, 31, table("1", 0, 31)), state(32, 63, table("2", 32, 99)), state(64, 127)], KeyGroupRange(0, 127)
    )
    assert not plan.joins_as_it_is


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ([], "no keyed state"),
        ([state(0, 127, maximum=128), state(0, 9, maximum=10)], "disagree on max_parallelism"),
        ([replace(state(0, 127), format="leveldb")], "unknown format 'leveldb'"),
        ([state(0, 63)], "no subtask's state has key group 64"),
        ([state(64, 127)], "no subtask's state has key group 0"),
        ([state(0, 62), state(64, 127)], "no subtask's state has key group 63"),
        ([state(0, 64), state(64, 127)], "two subtasks have key group 64"),
        ([state(0, 127), state(5, 5)], "two subtasks have key group 5"),
    ],
)
def test_handles_that_contradict_each_other_are_refused(states, reason):
    with pytest.raises(CheckpointError, match=reason):
        plan_restore(states, KeyGroupRange(0, 127))


@pytest.mark.parametrize("wanted", [KeyGroupRange(0, 128), KeyGroupRange(-1, 5), KeyGroupRange(5, 4)])
def test_key_groups_that_do_not_exist_are_refused(wanted):
    with pytest.raises(UsageError):
        plan_restore([state(0, 127)], wanted)


@given(st.data(), st.sampled_from([1, 2, 10, 128, 32768]))
def test_subtasks_together_take_every_file_and_no_file_in_vain(data, maximum):
    before, after = (data.draw(st.integers(1, min(maximum, 12))) for _ in range(2))
    states = []
    for subtask in range(before):
        own = key_groups_of(subtask, before, maximum)
        bounds = st.integers(own.first, own.last)
        spans = data.draw(st.lists(st.tuples(bounds, bounds).map(sorted), max_size=6))
        files = [table(str(number), low, high) for number, (low, high) in enumerate(spans)]
        states.append(state(own.first, own.last, *files, maximum=maximum))
    taken: set[int] = set()
    for subtask in range(after):
        wanted = key_groups_of(subtask, after, maximum)
        plan = plan_restore(states, wanted)
        assert plan.joins_as_it_is
        for handle, each in plan.explain():
            low, high = (int.from_bytes(key[:2], "big") for key in (each.file.smallest, each.file.largest))
            same = handle.key_groups == wanted
            assert each.needed == (same or (low <= wanted.last and high >= wanted.first))
            if each.needed:
                taken.add(id(each.file))
    assert taken == {id(file) for each in states for file in each.shared}


def test_a_hundred_thousand_files_are_planned_quickly():
    files = [table(str(number), number % 32768, min(32767, number % 32768 + 3)) for number in range(100_000)]
    states = [state(0, 32767, *files, maximum=32768)]
    started = time.process_time()
    plan = plan_restore(states, KeyGroupRange(0, 16383))
    assert plan.bytes + plan.bytes_saved == 1_000_000
    assert time.process_time() - started < 10
