from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelift.backends.errors import UsageError
from statelift.transfer.handles import KeyGroupRange, key_groups_of, subtask_of
from statelift.transfer.keyed.key_groups import (
    encode_key,
    key_bounds,
    key_group_of,
    key_groups_between,
    prefix_of,
    spark_hash,
    spark_hash_int,
)

# hash() of PySpark 4.3.0 on Java 17.
OF_SPARK = [
    ("", 142593372),
    ("a", 1485273170),
    ("ab", -97053317),
    ("abc", 1322437556),
    ("abcd", -396302900),
    ("abcde", 814637928),
    ("abcdefg", 2132013596),
    ("abcdefgh", -804741815),
    ("žluťoučký kůň", 191597241),
    ("日本語", -1143049834),
    ("user-123456", -90287910),
    ("x" * 100, 1899616407),
    (None, 42),
    (b"", 142593372),
    (b"\x00", -783713497),
    (b"\xff", 1398487324),
    (b"\xff\xfe\x80", 131870668),
    (b"\x00\x01\x02\x03\x80\xff", 1818968676),
    (bytes(range(256)), -1466620173),
    (0, -1670924195),
    (1, -1712319331),
    (-1, -939490007),
    (42, 1316951768),
    (2**31 - 1, -1076662929),
    (-(2**31), -1889108749),
    (2**31, 238268309),
    (2**63 - 1, -1604625029),
    (-(2**63), -853646085),
    (123456789012345, 1130168193),
    (0.0, -1670924195),
    (-0.0, -1670924195),
    (1.0, -460888942),
    (-1.5, 2099784398),
    (3.141592653589793, -430070052),
    (math.inf, 833680482),
    (-math.inf, 461104036),
    (math.nan, -1281358385),
    (1e300, -359479591),
    (5e-324, -1712319331),
    (True, -559580957),
    (False, 933211791),
    (("a", 1, None), 1838122449),
    (("b", -5, 2.5), -132821055),
    ((None, None, None), 42),
]


@pytest.mark.parametrize(("value", "expected"), OF_SPARK, ids=lambda each: repr(each)[:20])
def test_the_hash_equals_sparks(value, expected):
    assert spark_hash(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 933211791), (-1, -1604776387), (42, 29417773), (2**31 - 1, 133916647), (-(2**31), 723455942)],
)
def test_the_hash_of_an_int_column_equals_sparks(value, expected):
    assert spark_hash_int(value) == expected


def test_a_key_without_a_hash_is_refused():
    with pytest.raises(UsageError, match="list cannot be a key"):
        spark_hash([1])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="64 bits"):
        spark_hash(1 << 63)
    with pytest.raises(UsageError, match="64 bits"):
        encode_key(-(1 << 63) - 1)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_encoded_numbers_sort_like_numbers(one, other):
    assert (encode_key(one) < encode_key(other)) == (one < other)


@given(st.data(), st.one_of(st.just(1), st.just(32768), st.integers(1, 32768)))
def test_every_key_group_belongs_to_the_subtask_whose_range_has_it(data, max_parallelism):
    parallelism = data.draw(st.integers(1, max_parallelism))
    key_group = key_group_of(data.draw(st.binary(max_size=9)), max_parallelism)
    assert 0 <= key_group < max_parallelism
    subtask = subtask_of(key_group, parallelism, max_parallelism)
    assert key_group in key_groups_of(subtask, parallelism, max_parallelism)


@given(st.integers(0, 32767), st.binary(max_size=5), st.integers(0, 32767), st.binary(max_size=5))
def test_bounds_hold_exactly_the_keys_of_the_range(first, key, other, other_key):
    low, high = key_bounds(KeyGroupRange(first, first))
    assert (low <= prefix_of(other) + other_key < high) == (other == first)
    assert key_groups_between(low + key, prefix_of(first) + key) == KeyGroupRange(first, first)


def test_a_key_without_prefix_has_no_key_group():
    with pytest.raises(UsageError, match="without a key group"):
        key_groups_between(b"\x00", b"\x00\x01abc")
