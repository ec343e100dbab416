"""What the environment alone says of credentials and region, as botocore's chain would, without its import.

botocore's session takes 0.2 s of CPU to import, more than a small restore; where the first
link of its chain decides, nothing behind that link needs to be loaded.
Source: AWS SDKs and Tools Reference Guide, "Credential provider chain", and botocore's
``EnvProvider`` and configuration variables, which the tests compare with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_PROFILES = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")
_TOKENS = ("AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN")
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}


def environment_keys(environ: Mapping[str, str] = os.environ) -> tuple[str, str, str | None] | None:
    """(access key, secret key, session token) where the environment decides, else None: ask the chain.

    Keys that expire are the chain's, which watches their time.
    """
    access_key, secret_key = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
    if not access_key or not secret_key or _defers(environ):
        return None
    token = next((environ[name] for name in _TOKENS if environ.get(name)), None)
    return access_key, secret_key, token


def environment_region(environ: Mapping[str, str] = os.environ) -> str | None:
    """The region where the environment decides ('' for none at all), else None: a configuration file may say."""
    if _names_profile(environ):
        return None
    named = environ.get("AWS_DEFAULT_REGION")
    if named is not None:
        return named
    files = (os.path.expanduser(environ.get(name) or usual) for name, usual in _FILES.items())
    return None if any(map(os.path.isfile, files)) else ""


def _defers(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("AWS_CREDENTIAL_EXPIRATION")) or _names_profile(environ)


def _names_profile(environ: Mapping[str, str]) -> bool:
    return any(environ.get(name) for name in _PROFILES)
