"""Options: parsing, precedence, unknown keys, secrets."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelift.backends.errors import OptionError
from statelift.backends.options import (
    Configuration,
    OptionGroup,
    declared,
    environment_name,
    parse_bool,
    parse_duration,
    parse_size,
)
from statelift.backends.s3_options import S3Options
from statelift.backends.sdk import SdkOptions
from statelift.backends.stream import StreamOptions
from statelift.backends.transfer_options import TransferOptions
from statelift.s5cmd_integration.options import S5cmdOptions


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024mb", 1 << 30), ("64k", 65536), ("1.5 GiB", 3 << 29), ("1000", 1000), ("0", 0), ("2TB", 2 << 40)],
)
def test_sizes_are_in_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "mb", "-1", "1 x", "1e3", "1,5mb", "1mbb"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@given(st.integers(0, 1 << 50))
def test_a_plain_number_is_its_own_size(number: int) -> None:
    assert parse_size(str(number)) == number


@pytest.mark.parametrize(("text", "seconds"), [("10", 10), ("500ms", 0.5), ("2 min", 120), ("1h", 3600), ("3s", 3)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["maybe", "", "2"])
def test_neither_true_nor_false(text: str) -> None:
    with pytest.raises(ValueError, match="not true or false"):
        parse_bool(text)


SOURCES = ("argument", "spark", "hadoop", "environment")


@given(st.sets(st.sampled_from(SOURCES)), st.booleans())
def test_the_first_source_wins_under_any_of_its_names(given_in: set[str], older_name: bool) -> None:
    """An alias in a better source beats the key itself in a worse one."""
    key = "s3.path.style.access" if older_name else "s3.path-style-access"
    # Each source says something that only it says: true for the first of those given, false for the others.
    order = [source for source in SOURCES if source in given_in]
    said = {source: "true" if index == 0 else "false" for index, source in enumerate(order)}
    spark = {}
    if "spark" in said:
        spark[f"spark.statelift.{key}"] = said["spark"]
    if "hadoop" in said:
        spark["spark.hadoop.fs.s3a.path.style.access"] = said["hadoop"]
    environ = {environment_name(key): said["environment"]} if "environment" in said else {}
    arguments = {key: said["argument"]} if "argument" in said else {}
    options = Configuration(arguments, spark=spark, environ=environ).of(S3Options)
    assert options.path_style is (True if order else None)


def test_every_key_has_an_environment_variable_of_its_own() -> None:
    names = [environment_name(each.key) for each in declared()]
    assert len(set(names)) == len(names)


@given(st.text(min_size=1, max_size=30))
def test_unknown_keys_are_refused_with_the_nearest_known_one(key: str) -> None:
    known = {name for each in declared() for name in (each.key, *each.aliases)}
    if key in known:
        return
    with pytest.raises(OptionError, match="did you mean"):
        Configuration({key: "x"}, environ={})


def test_a_typing_error_is_answered_with_what_was_meant() -> None:
    with pytest.raises(OptionError) as caught:
        Configuration(spark={"spark.statelift.s3.s5cmd.batch.max-file": "3"}, environ={})
    assert caught.value.remedy == "did you mean spark.statelift.s3.s5cmd.batch.max-files?"


def test_a_value_that_does_not_parse_names_key_value_and_source() -> None:
    configuration = Configuration(environ={"STATELIFT_TRANSFER_THREADS": "many"})
    with pytest.raises(OptionError, match=r"transfer.threads = 'many' \(from environment\)"):
        configuration.of(TransferOptions)


@pytest.mark.parametrize(
    ("key", "group"),
    [
        ("transfer.threads", TransferOptions),
        ("transfer.retries", TransferOptions),
        ("stream.parallel", StreamOptions),
        ("sdk.requests", SdkOptions),
        ("s3.s5cmd.batch.max-files", S5cmdOptions),
        ("s3.s5cmd.cpulimit", S5cmdOptions),
    ],
)
def test_what_is_no_number_is_told_in_words(key: str, group: type[OptionGroup]) -> None:
    with pytest.raises(OptionError, match="'many' .*: not a whole number"):
        Configuration({key: "many"}, environ={}).of(group)


@pytest.mark.parametrize("endpoint", ["http://store:99999", "store:no", "https://store:-1"])
def test_an_endpoint_with_an_impossible_port_is_refused(endpoint: str) -> None:
    with pytest.raises(OptionError, match="not a URL such as http://localhost:9000: Port"):
        Configuration({"s3.endpoint": endpoint}, environ={}).of(S3Options)


def test_the_seeds_defaults_hold() -> None:
    options = Configuration(environ={}).of(S5cmdOptions)
    assert options.path is None
    assert (options.batch_max_size, options.batch_max_files) == (1 << 30, 100)


def test_hadoops_endpoint_without_a_scheme_follows_its_ssl_switch() -> None:
    spark = {"spark.hadoop.fs.s3a.endpoint": "store:9000", "spark.hadoop.fs.s3a.connection.ssl.enabled": "false"}
    assert Configuration(spark=spark, environ={}).of(S3Options).endpoint == "http://store:9000"
    assert Configuration({"s3.endpoint": "store"}, environ={}).of(S3Options).endpoint == "https://store"


def test_half_a_pair_of_keys_is_refused() -> None:
    with pytest.raises(OptionError, match="s3.secret-key is missing"):
        Configuration({"s3.access-key": "AK"}, environ={}).of(S3Options)


SECRET = "sUpErSeCrEt/+value"


def with_secret() -> Configuration:
    return Configuration({"s3.access-key": "AKIDEXAMPLE", "s3.secret-key": SECRET, "s3.region": "mars-1"}, environ={})


def test_secrets_are_in_no_repr_and_no_pickle() -> None:
    configuration = with_secret()
    options = configuration.of(S3Options)
    for each in (repr(configuration), repr(options), str(pickle.dumps(configuration)), str(pickle.dumps(options))):
        assert SECRET not in each
        assert "AKIDEXAMPLE" not in each


def test_a_pickled_configuration_finds_its_secrets_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = with_secret()
    data, options_data = pickle.dumps(configuration), pickle.dumps(configuration.of(S3Options))
    for name, value in configuration.secrets().items():
        monkeypatch.setenv(name, value)
    assert pickle.loads(data).of(S3Options).secret_key == SECRET
    assert pickle.loads(options_data) == configuration.of(S3Options)
    assert pickle.loads(data).of(S3Options).region == "mars-1"


def test_a_secret_that_did_not_arrive_is_missed_not_replaced() -> None:
    options = pickle.loads(pickle.dumps(with_secret().of(S3Options)))
    assert set(options.missing_secrets) == {"s3.access-key", "s3.secret-key"}


def test_a_bad_secret_is_not_shown() -> None:
    with pytest.raises(OptionError) as caught:
        Configuration({"s3.endpoint": "ftp://x"}, environ={}).of(S3Options)
    assert "ftp://x" in str(caught.value)


def test_arguments_added_later_win() -> None:
    configuration = Configuration({"transfer.threads": 2}, environ={}).with_arguments({"transfer.threads": 8})
    assert configuration.of(TransferOptions).threads == 8
    with pytest.raises(OptionError):
        configuration.with_arguments({"transfer.thread": 8})
