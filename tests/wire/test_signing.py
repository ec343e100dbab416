"""Signatures agree with botocore's, whatever the key."""

from __future__ import annotations

from datetime import UTC, datetime

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import example, given, settings
from hypothesis import strategies as st

from statelift.backends.s3_access import Credentials
from statelift.backends.wire import signing
from statelift.backends.wire.signing import Signer, encode_path, encode_query

KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
QUERIES = st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=10), st.text(max_size=10))
TOKENS = st.none() | st.just("token/with+signs==")


def signed_by_botocore(method: str, path: str, query: str, token: str | None, payload: str) -> str:
    """The ``Authorization`` header that botocore makes at the same second."""
    url = f"https://bucket.example.com{path}{'?' + query if query else ''}"
    request = AWSRequest(method, url, headers={"x-amz-checksum-mode": "ENABLED"})
    request.context["payload_signing_enabled"] = payload != signing.UNSIGNED_PAYLOAD
    request.headers["X-Amz-Content-SHA256"] = payload
    auth = botocore.auth.S3SigV4Auth(BotoCredentials("AKIDEXAMPLE", "secret/key+", token), "s3", "eu-west-1")
    auth.payload = lambda request: payload
    auth.add_auth(request)
    return str(request.headers["Authorization"])


@given(KEYS, QUERIES, TOKENS, st.sampled_from(["GET", "PUT", "POST"]), st.booleans())
@example("a b+c%20d/../e//f/./g\n\té😀~'!*()&$@=:,;?#[]\\\"<>", {"uploads": "", "prefix": "a b/+"}, None, "GET", True)
@example("/", {}, "t", "GET", False)
@example("trailing/", {"partNumber": "10", "uploadId": "a+/="}, None, "PUT", False)
@settings(max_examples=150, deadline=None)
def test_signatures_agree_with_botocore(
    key: str, query: dict[str, str], token: str | None, method: str, unsigned: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        moment = datetime(2024, 2, 29, 23, 59, 59, tzinfo=UTC)
        patch.setattr(signing.time, "time", moment.timestamp)
        patch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: moment.replace(tzinfo=None))
        path, text = "/" + encode_path(key), encode_query(query)
        payload = signing.UNSIGNED_PAYLOAD if unsigned else signing.EMPTY_SHA256
        headers = {"host": "bucket.example.com", "x-amz-checksum-mode": "ENABLED"}
        Signer(Credentials("AKIDEXAMPLE", "secret/key+", token), "eu-west-1").sign(
            method, path, text, headers, payload=payload
        )
        assert headers["authorization"] == signed_by_botocore(method, path, text, token, payload)


def test_a_key_is_encoded_once_and_never_tidied() -> None:
    assert encode_path("a//b/./../c d%20\n") == "a//b/./../c%20d%2520%0A"


def test_without_credentials_nothing_is_signed() -> None:
    headers = {"host": "h"}
    Signer(None, "r").sign("GET", "/", "", headers)
    assert headers == {"host": "h"}


def test_the_key_is_derived_anew_on_the_next_day(monkeypatch: pytest.MonkeyPatch) -> None:
    signer = Signer(Credentials("a", "b"), "r")
    scopes = []
    for day in (1, 2):
        moment = datetime(2024, 3, day, tzinfo=UTC)
        monkeypatch.setattr(signing.time, "time", moment.timestamp)
        headers = {"host": "h"}
        signer.sign("GET", "/", "", headers)
        fresh = {"host": "h"}
        Signer(Credentials("a", "b"), "r").sign("GET", "/", "", fresh)
        assert headers == fresh
        scopes.append(headers["authorization"].split("/")[1])
    assert scopes == ["20240301", "20240302"]
