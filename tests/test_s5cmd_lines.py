"""What s5cmd is told and what it says: arguments, lines, environment, output, errors, secrets, tuning."""

from __future__ import annotations

import json
import os
import pickle
import shlex
import string
import subprocess
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelift.backends.errors import (
    AccessDenied,
    BackendError,
    ConnectionFailed,
    DestinationError,
    NoSpace,
    OptionError,
    SourceNotFound,
    Throttled,
    TransferError,
    UnsupportedCopy,
)
from statelift.backends.options import Configuration
from statelift.backends.request import CopyRequest, locate
from statelift.backends.s3_access import Credentials
from statelift.backends.s3_options import S3Options
from statelift.s5cmd_integration import S5cmdOptions
from statelift.s5cmd_integration.arguments import Arguments, parse_arguments
from statelift.s5cmd_integration.command import Launch, flags_of, make_line, refusal_of_pair
from statelift.s5cmd_integration.failures import error_of, says_expired
from statelift.s5cmd_integration.items import make_item, make_items
from statelift.s5cmd_integration.masking import Masker
from statelift.s5cmd_integration.output import Failure, Noise, Success, parse_line
from statelift.s5cmd_integration.program import find_program
from statelift.s5cmd_integration.runs import Quota
from statelift.s5cmd_integration.tuning import MIB, WHOLE, Parts, download_parts, upload_parts, workers_for

PROGRAM = find_program(None)
S3 = S3Options(endpoint="http://127.0.0.1:9")


# Arguments.


@pytest.mark.parametrize(
    "text",
    ["", "-r 3", "--retry-count=3 --stat", "--credentials-file '/a b/c' --profile x", "--log debug --no-verify-ssl"],
)
def test_global_flags_are_taken_as_a_shell_splits_them(text: str) -> None:
    assert parse_arguments(text).words == tuple(shlex.split(text))
    assert parse_arguments(str(parse_arguments(text))) == parse_arguments(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rm s3://state/*", "not a flag"),
        ("-r 0 rm s3://state/*", "not a flag"),
        ("--stat -- rm s3://state/*", "not a flag"),
        ("--retry-cuont 3", "did you mean --retry-count"),
        ("--log trace", "secrets"),
        ("--log=trace", "secrets"),
        ("--log error", "hides"),
        ("--dry-run", "nothing would be copied"),
        ("-h", "nothing would be copied"),
        ("--json=false", "no value"),
        ("--numworkers many", "not a number"),
        ("-r", "needs a value"),
        ("--profile", "needs a value"),
        ("'unbalanced", "quotation"),
    ],
)
def test_what_is_no_global_flag_or_breaks_copies_is_refused(text: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        Configuration({"s3.s5cmd.args": text}, environ={}).of(S5cmdOptions)


@given(st.lists(st.sampled_from(["rm", "s3://b/*", "run", "-r", "0", "--stat", "--log", "info", "--", "-", "--json"])))
def test_no_accepted_argument_is_a_command(words: list[str]) -> None:
    try:
        accepted = parse_arguments(shlex.join(words))
    except ValueError:
        return
    left = list(accepted.words)
    while left:
        flag = left.pop(0)
        assert flag.startswith("--") or flag == "-r"
        if flag in {"-r", "--log"}:
            left.pop(0)


def test_values_of_flags_are_found_under_every_spelling() -> None:
    arguments = parse_arguments("-r 1 --retry-count=5 --numworkers 7")
    assert arguments.value("retry-count") == "5"
    assert arguments.value("numworkers") == "7"
    assert arguments.value("profile") is None
    assert parse_arguments("--profile p").chooses_credentials
    assert not arguments.chooses_credentials


# Lines.

names = st.text(
    st.one_of(st.sampled_from(list(" '\"\\#*?$`;&|{}[]~%+-!()<>=,:@\t\x01\x7f\u0085\u2028é日😀")), st.characters()),
    min_size=1,
    max_size=40,
)


@given(st.lists(names, min_size=1, max_size=12, unique=True))
@settings(max_examples=60, deadline=None)
def test_the_real_s5cmd_reads_every_name_that_is_not_refused(found: list[str]) -> None:
    """A dry run tells what s5cmd understood, without a server."""
    pairs = [(locate(f"s3://bucket/{name}"), locate(f"s3://other/copy {name}")) for name in found]
    pairs = [pair for pair in pairs if refusal_of_pair(*pair, S3) is None]
    lines = [make_line(f"s3://bucket/{source.key}", f"s3://other/{to.key}", WHOLE) for source, to in pairs]
    output = run_dry(b"".join(lines))
    told = [parse_line(line) for line in output.splitlines()]
    assert {(line.source, line.destination) for line in told if isinstance(line, Success)} == {
        (f"s3://bucket/{source.key}", f"s3://other/{to.key}") for source, to in pairs
    }


@given(names, names)
def test_a_line_is_one_line(source: str, destination: str) -> None:
    pair = locate(f"s3://bucket/{source}"), locate(f"s3://bucket/{destination}")
    if refusal_of_pair(*pair, S3) is None:
        line = make_line(f"s3://bucket/{source}", f"s3://bucket/{destination}", WHOLE)
        assert line.count(b"\n") == 1
        assert line.endswith(b"\n")
        assert b"\r" not in line


def run_dry(lines: bytes) -> bytes:
    environment = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "x",
        "S3_ENDPOINT_URL": "http://127.0.0.1:9",
    }
    done = subprocess.run(
        [PROGRAM, "--json", "--dry-run", "run"],
        input=lines,
        capture_output=True,
        env=environment,
        timeout=30,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("source", "destination", "why"),
    [
        ("s3://b/a\ncp s3://b/x /etc/y", "/tmp/f", "line break"),
        ("s3://b/a\rb", "/tmp/f", "line break"),
        ("s3://b/a", "/tmp/f\n", "line break"),
        ("/tmp/a\0b", "s3://b/f", "line break"),
        ("s3://b/directory/", "/tmp/f", "ends with /"),
        ("/tmp/f", "s3://b/directory/", "ends with /"),
        ("s3://b/a", "/tmp/x://y", "URL"),
        ("/tmp/x\udcff", "s3://b/a", "UTF-8"),
        ("/tmp/a", "/tmp/b", "does not copy file to file"),
        ("gs://b/a", "/tmp/b", "does not copy gs to file"),
        ("s3://b/a", "gs://b/a", "does not copy s3 to gs"),
    ],
)
def test_what_s5cmd_cannot_do_safely_is_told_beforehand(source: str, destination: str, why: str) -> None:
    reason = refusal_of_pair(locate(source), locate(destination), S3)
    assert reason is not None
    assert why in reason
    with pytest.raises(UnsupportedCopy, match=why):
        make_item(CopyRequest(source, destination), S3)


def test_virtual_hosts_of_a_custom_endpoint_are_refused() -> None:
    pair = locate("s3://b/a"), locate("/tmp/a")
    assert refusal_of_pair(*pair, S3Options(endpoint="http://127.0.0.1:9", path_style=False)) is not None
    assert refusal_of_pair(*pair, S3Options(path_style=False)) is None


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (CopyRequest("s3://b/a", "/tmp/f", size=10, offset=1), "whole objects"),
        (CopyRequest("s3://b/a", "/tmp/f", length=1), "whole objects"),
        (CopyRequest("s3://b/a", "s3://b/c", size=(5 << 30) + 1), "5 GiB"),
    ],
)
def test_ranges_and_large_copies_are_refused_one_by_one(request_: CopyRequest, why: str) -> None:
    good = CopyRequest("s3://b/a", "/tmp/f", size=6 << 30)
    items, errors = make_items([good, request_], S3)
    assert [item.request for item in items] == [good]
    assert [error.request for error in errors] == [request_]
    assert why in str(errors[0])
    assert isinstance(errors[0], UnsupportedCopy)
    assert not errors[0].shared


def test_aliases_of_s3_are_rewritten_and_local_sources_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"1")
    (tmp_path / "link").symlink_to("real")
    item = make_item(CopyRequest(f"{tmp_path}/x/../link", "s3a://b/k"), S3)
    assert item.source.key == str(tmp_path / "real")
    assert item.destination.scheme == "s3"
    (tmp_path / "bad").symlink_to("a\nb")
    with pytest.raises(UnsupportedCopy):
        make_item(CopyRequest(f"{tmp_path}/bad", "s3://b/k"), S3)


def test_encryption_is_asked_for_on_what_is_written() -> None:
    encrypted = S3Options(sse_type="aws:kms", sse_kms_key_id="key")
    assert flags_of("upload", encrypted) == ("--sse", "aws:kms", "--sse-kms-key-id", "key")
    assert flags_of("remote", encrypted) == flags_of("upload", encrypted)
    assert flags_of("download", encrypted) == ()
    assert flags_of("upload", S3Options()) == ()


# Environment.


def launch(s3: S3Options = S3, **options: object) -> Launch:
    return Launch(PROGRAM, s3, Configuration(options, environ={}).of(S5cmdOptions))


AMBIENT = {
    "AWS_PROFILE": "other",
    "AWS_ACCESS_KEY_ID": "ambient",
    "AWS_SECRET_ACCESS_KEY": "ambient-secret",
    "AWS_SESSION_TOKEN": "ambient-token",
    "AWS_REGION": "ambient-1",
    "AWS_SHARED_CREDENTIALS_FILE": "/ambient/credentials",
    "AWS_CONFIG_FILE": "/ambient/config",
    "AWS_CA_BUNDLE": "/ambient/ca",
    "S3_ENDPOINT_URL": "http://ambient",
    "STATELIFT_S3_SECRET_KEY": "configured-secret",
    "HTTPS_PROXY": "http://proxy:1",
    "PATH": "/bin",
}


def test_configured_credentials_win_over_ambient_ones() -> None:
    found = launch().environment(Credentials("key", "secret", None), "here-1", AMBIENT)
    assert found["AWS_ACCESS_KEY_ID"] == "key"
    assert found["AWS_SECRET_ACCESS_KEY"] == "secret"
    assert found["AWS_REGION"] == "here-1"
    assert found["S3_ENDPOINT_URL"] == "http://127.0.0.1:9"
    assert not [value for name, value in found.items() if "ambient" in value]
    assert not {"AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE", "STATELIFT_S3_SECRET_KEY"} & set(found)
    assert found["AWS_SHARED_CREDENTIALS_FILE"] == found["AWS_CONFIG_FILE"] == os.devnull
    assert found["HTTPS_PROXY"] == "http://proxy:1"


def test_a_session_token_and_a_ca_bundle_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    options = S3Options(ca_bundle=tmp_path / "ca.pem")
    found = launch(options).environment(Credentials("key", "secret", "token"), None, AMBIENT)
    assert found["AWS_SESSION_TOKEN"] == "token"
    assert found["AWS_CA_BUNDLE"] == str(tmp_path / "ca.pem")
    assert "S3_ENDPOINT_URL" not in found
    assert "AWS_REGION" not in found


def test_unsigned_requests_need_no_credentials() -> None:
    anonymous = launch(S3Options(anonymous=True))
    assert "--no-sign-request" in anonymous.argv(4)
    assert "AWS_ACCESS_KEY_ID" not in anonymous.environment(None, None, AMBIENT)


def test_the_users_own_profile_keeps_its_files() -> None:
    chosen = launch(**{"s3.s5cmd.args": "--profile mine"})
    found = chosen.environment(None, None, AMBIENT)
    assert found["AWS_SHARED_CREDENTIALS_FILE"] == "/ambient/credentials"
    assert "AWS_ACCESS_KEY_ID" not in found
    assert "AWS_PROFILE" not in found


def test_limits_of_the_go_runtime_may_be_replaced() -> None:
    limited = launch(**{"s3.s5cmd.cpulimit": "150", "s3.s5cmd.memory-limit": "64mb"})
    found = limited.environment(None, None, {})
    assert (found["GOMEMLIMIT"], found["GOMAXPROCS"]) == (f"{64 << 20}B", "2")
    assert limited.environment(None, None, {"GOGC": "50", "GOMAXPROCS": "1"})["GOGC"] == "50"


def test_no_secret_is_in_the_command_line_nor_in_what_is_printed_of_it() -> None:
    options = S3Options(endpoint="http://127.0.0.1:9", access_key="the-key", secret_key="the-secret")
    made = launch(options)
    assert "the-secret" not in " ".join(made.argv(4))
    assert "the-secret" not in repr(made)
    assert made.argv(4)[1:] == ["--json", "--numworkers", "4", "-r", "0", "run"]


# Output.


def test_results_are_told_from_noise() -> None:
    success = (
        b'{"operation":"cp","success":true,"source":"s3://b/k","destination":"/d/k","object":{"type":"file","size":5}}'
    )
    assert parse_line(success) == Success("s3://b/k", "/d/k", 5)
    assert parse_line(success.replace(b',"size":5', b"")) == Success("s3://b/k", "/d/k", 0)
    remote = success.replace(b'"type":"file","size":5', b'"key":"s3://b/l","type":"file"')
    assert parse_line(remote) == Success("s3://b/k", "/d/k", None)
    assert parse_line(b'{"operation":"cp","command":"cp a b","error":"x"}') == Failure("cp a b", "x")
    for line in (
        b'{"operation":"cp","success":2,"error":1}',
        b"USAGE:",
        b"[1]",
        b"\xff",
        b'{"operation":"rm","success":true}',
    ):
        assert isinstance(parse_line(line), Noise)


@given(st.binary(max_size=300))
def test_any_line_is_parsed(line: bytes) -> None:
    parse_line(line)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.dictionaries(
            st.sampled_from(
                ["operation", "success", "source", "destination", "object", "size", "key", "error", "command"]
            ),
            inner,
        ),
        max_leaves=12,
    )
)
def test_only_a_complete_success_is_one(found: object) -> None:
    parsed = parse_line(json.dumps(found).encode())
    if isinstance(parsed, Success):
        assert isinstance(found, dict)
        assert found["success"] is True
        assert found["operation"] == "cp"
        assert parsed.size is None or isinstance(parsed.size, int)


def test_a_deeply_nested_line_is_noise() -> None:
    assert isinstance(parse_line(b"[" * 100_000), Noise)


# Errors.

DOWN = CopyRequest("s3://b/k", "/d/k")
UP = CopyRequest("/d/k", "s3://b/k")


@pytest.mark.parametrize(
    ("text", "kind", "request_"),
    [
        ("NoSuchKey:  status code: 404, request id: 1, host id: 2", SourceNotFound, DOWN),
        ("NoSuchBucket: The specified bucket does not exist status code: 404, request id: 1", SourceNotFound, UP),
        ("SlowDown: Please reduce\n\tstatus code: 503, request id: 1", Throttled, DOWN),
        ("Forbidden: Forbidden status code: 403, request id: 1", AccessDenied, DOWN),
        ("ExpiredToken: by order status code: 400, request id: 1", AccessDenied, DOWN),
        ("NoCredentialProviders: no valid providers in chain. Deprecated.", AccessDenied, DOWN),
        (
            "MultipartUpload: upload failed upload id: x caused by: SlowDown: no\n\tstatus code: 503, request id: 1",
            Throttled,
            UP,
        ),
        (
            'RequestError: send request failed caused by: Get "http://x": dial tcp: connect: connection refused',
            ConnectionFailed,
            DOWN,
        ),
        (
            'RequestError: send request failed caused by: Get "https://x": x509: signed by unknown authority',
            ConnectionFailed,
            DOWN,
        ),
        ("unexpected EOF", ConnectionFailed, DOWN),
        ("write /d/k1234: no space left on device", NoSpace, DOWN),
        ("open /d/k1234: permission denied", DestinationError, DOWN),
        ("open /d/k: permission denied", AccessDenied, UP),
        ("given object /d/k not found", SourceNotFound, UP),
        ("read /d/k: input/output error", AccessDenied, UP),
        (
            "BucketRegionError: incorrect region, the bucket is not in 'x', bucket is in 'eu-west-1' region",
            BackendError,
            DOWN,
        ),
        ("something else", BackendError, DOWN),
    ],
)
def test_errors_are_told_apart(text: str, kind: type[TransferError], request_: CopyRequest) -> None:
    error = error_of(text, request_)
    assert type(error) is kind or (kind is BackendError and isinstance(error, BackendError))
    assert error.request == request_
    assert "request id" not in str(error)
    assert pickle.loads(pickle.dumps(error)).args == error.args


def test_transient_errors_are_told_apart() -> None:
    assert error_of("unexpected EOF", DOWN).transient
    assert error_of("InternalError: x status code: 500, request id: 1", DOWN).transient
    assert not error_of("x509: certificate has expired", DOWN).transient
    assert not error_of("NoSuchKey:  status code: 404", DOWN).transient
    assert says_expired("ExpiredToken: by order status code: 400")
    assert not says_expired("Forbidden: no status code: 403")


@given(st.text(max_size=200))
def test_any_text_is_an_error_of_the_tree(text: str) -> None:
    assert isinstance(error_of(text, DOWN), TransferError)
    assert isinstance(error_of(text, UP), TransferError)


# Secrets.

secrets = st.text(string.ascii_letters + string.digits + '/+=-_.~ &%\\"é', min_size=4, max_size=40)


@given(st.lists(secrets, min_size=1, max_size=3), st.text(max_size=30), st.text(max_size=30), st.data())
def test_no_secret_survives(found: list[str], before: str, after: str, data: st.DataObject) -> None:
    secret = data.draw(st.sampled_from(found))
    forms = [
        secret,
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        quote(secret, safe="").lower() if not any(c.isupper() for c in secret) else secret,
        quote(quote(secret, safe=""), safe=""),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        json.dumps(quote(secret, safe=""))[1:-1],
        "".join(f"\\u{ord(character):04x}" for character in secret),
    ]
    masked = Masker(found)(before + data.draw(st.sampled_from(forms)) + after)
    for form in forms:
        assert form not in masked


def test_secrets_that_are_named_are_masked_whoever_they_belong_to() -> None:
    text = Masker([])(
        "GET /k?X-Amz-Credential=AK%2F1&X-Amz-Signature=abc123&x=1 Authorization: AWS4 Signature=def, done"
    )
    assert "abc123" not in text
    assert "AK%2F1" not in text
    assert "def" not in text
    assert "x=1" in text


def test_other_text_is_left_alone() -> None:
    assert Masker([None, ""])("NoSuchKey: status code: 404") == "NoSuchKey: status code: 404"


# Tuning.

sizes = st.one_of(st.none(), st.integers(0, 1 << 42))


@given(st.lists(sizes, min_size=1, max_size=50), st.integers(1, 64), st.integers(0, 100_000))
def test_workers_fit_the_files_the_cpus_and_the_descriptors(
    found: list[int | None], cpus: int, descriptors: int
) -> None:
    workers = workers_for(found, cpus, descriptors)
    assert 2 <= workers <= max(2, min(len(found), 128))
    if descriptors > 64:
        assert workers * 3 + 32 <= descriptors or workers == 2


def test_small_files_get_more_workers_than_large_ones() -> None:
    assert workers_for([1000] * 500, 1, 0) == 32
    assert workers_for([64 * MIB] * 500, 1, 0) == 16
    assert workers_for([None] * 500, 1, 0) == 16
    assert workers_for([1000] * 500, 1, 64) == 10


@given(st.integers(0, 5 << 40), st.integers(1, 200), st.integers(1, 128))
def test_parts_stay_within_the_stores_limits(size: int, files: int, connections: int) -> None:
    for parts in (download_parts(size, files, connections), upload_parts(size, files, connections)):
        assert 1 <= parts.at_once <= 16
    assert -(-size // (upload_parts(size, files, connections).mebibytes * MIB)) <= 10_000
    assert upload_parts(size, files, connections).mebibytes >= 5


def test_files_are_cut_only_where_connections_are_left() -> None:
    assert download_parts(64 * MIB, 16, 16) is WHOLE
    assert download_parts(None, 1, 16) is WHOLE
    assert download_parts(20 * MIB, 1, 16) is WHOLE
    lone = download_parts(1024 * MIB, 1, 16)
    assert not lone.is_whole
    assert lone == Parts(32, 16)
    assert upload_parts(64 * MIB, 1, 16) == Parts(64, 1)


@given(st.integers(1, 20), st.integers(1, 10_000), st.lists(st.integers(0, 20_000), max_size=60))
def test_a_batch_keeps_to_its_limits(files: int, size: int, found: list[int]) -> None:
    """Fed as `Fleet` does: the next process takes over where one admits no more."""
    batches: list[list[int]] = []
    quota = Quota(0, 0)
    for each in found:
        if not quota.admits(each):
            quota = Quota(files, size)
            batches.append([])
        quota.take(each)
        batches[-1].append(each)
    for batch in batches:
        assert len(batch) <= files
        assert sum(batch) <= size or len(batch) == 1
    assert [each for batch in batches for each in batch] == found


def test_arguments_are_shown_as_text() -> None:
    assert str(Arguments(("-r", "0"))) == "-r 0"
