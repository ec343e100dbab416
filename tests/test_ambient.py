"""What the environment alone decides is what botocore's chain would have said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import botocore.session
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statelift.backends.ambient import environment_keys, environment_region
from statelift.backends.options import Configuration
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options

VALUES = st.sampled_from(["", "one", "two"])
NAMES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_DEFAULT_REGION",
)
ENVIRONMENTS = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, VALUES))


@given(environ=ENVIRONMENTS, in_file=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_environment_says_what_the_chain_says(
    environ: dict[str, str], in_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("[default]\nregion = mars-1\n")
    with monkeypatch.context() as patch:
        for name in NAMES:
            patch.delenv(name, raising=False)
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.setenv("AWS_CONFIG_FILE", str(config if in_file else tmp_path / "none"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        session = botocore.session.Session()
        keys, region = environment_keys(), environment_region()
        if keys is not None:
            found = session.get_credentials().get_frozen_credentials()
            assert keys == (found.access_key, found.secret_key, found.token)
        if region is not None:
            assert region == (session.get_config_variable("region") or "")


def test_it_decides_where_it_can() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    assert environment_keys(keys) == ("id", "secret", None)
    assert environment_keys({**keys, "AWS_SESSION_TOKEN": "token"}) == ("id", "secret", "token")
    assert environment_region({"AWS_DEFAULT_REGION": "mars-1"}) == "mars-1"


@pytest.mark.parametrize(
    "more",
    [
        {"AWS_PROFILE": "other"},
        {"AWS_DEFAULT_PROFILE": "other"},
        {"AWS_CREDENTIAL_EXPIRATION": "2030-01-01T00:00:00Z"},
        {"AWS_SECRET_ACCESS_KEY": ""},
    ],
)
def test_it_leaves_to_the_chain_what_is_the_chains(more: dict[str, str]) -> None:
    assert environment_keys({"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", **more}) is None


def test_a_configured_profile_asks_the_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text("[other]\naws_access_key_id = theirs\naws_secret_access_key = s\n")
    (tmp_path / "config").write_text("[profile other]\nregion = mars-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "ours")
    access = S3Access(Configuration({"s3.profile": "other"}, environ={}).of(S3Options))
    found = access.credentials()
    assert found is not None
    assert (found.access_key, access.region) == ("theirs", "mars-1")


def test_keys_of_the_environment_load_no_botocore(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from statelift.backends.options import Configuration\n"
        "from statelift.backends.s3_access import S3Access\n"
        "from statelift.backends.s3_options import S3Options\n"
        "access = S3Access(Configuration({}).of(S3Options))\n"
        "print(access.credentials().access_key, access.region, 'botocore' in sys.modules)\n"
    )
    environ = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "s", "HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["id", "us-east-1", "False"], done.stderr
