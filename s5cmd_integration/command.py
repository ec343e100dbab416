"""What s5cmd is told: which copies it can make, its command line, its environment, its input lines.

Nothing here starts or asks anything.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..backends.request import CopyRequest, Location, locate
from ..backends.s3_access import Credentials
from ..backends.s3_options import S3Options
from .options import S5cmdOptions
from .tuning import Parts

DOWNLOAD, UPLOAD, REMOTE = "download", "upload", "remote"
#: One CopyObject request copies at most so much (AWS, "Copying objects").
LARGEST_REMOTE_COPY = 5 << 30
#: What would contradict the configured store and credentials, or tell secrets that the child does not need.
_DROPPED_PREFIXES = ("AWS_", "STATELIFT_")
_DROPPED = {"S3_ENDPOINT_URL"}
_FILES = ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")
#: Fewer garbage collections: a quarter less CPU for small files, with GOMEMLIMIT as the guard.
_GOGC = "400"


def kind_of(source: Location, destination: Location) -> str | None:
    """``download``, ``upload``, ``remote``; None for a pair of schemes that s5cmd does not copy."""
    if source.scheme == "s3":
        return {"file": DOWNLOAD, "s3": REMOTE}.get(destination.scheme)
    return UPLOAD if (source.scheme, destination.scheme) == ("file", "s3") else None


def refusal_of_pair(source: Location, destination: Location, options: S3Options) -> str | None:
    """Why s5cmd cannot copy this pair safely, or None."""
    if kind_of(source, destination) is None:
        return f"s5cmd does not copy {source.scheme} to {destination.scheme}"
    if options.endpoint and not options.uses_path_style:
        return "s5cmd addresses buckets of a custom endpoint by path only"
    for place in (source, destination):
        reason = _refusal_of_name(place)
        if reason:
            return reason
    return None


def _refusal_of_name(place: Location) -> str | None:
    name = place.key if place.is_local else f"{place.bucket}/{place.key}"
    if any(character in name for character in "\n\r\0"):
        return "s5cmd reads one command a line, so it cannot be given a name with a line break"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "s5cmd cannot be given a name that is not UTF-8"
    if place.is_local:
        return "s5cmd takes a local path with :// in it for a URL" if "://" in name else None
    return "s5cmd takes a key that ends with / for a prefix" if name.endswith("/") else None


def refusal_of_request(request: CopyRequest) -> str | None:
    """Why s5cmd cannot make this copy although it copies such pairs, or None."""
    if request.is_range:
        return "s5cmd copies whole objects only"
    between_stores = locate(request.source).scheme == "s3" == locate(request.destination).scheme
    if between_stores and (request.size or 0) > LARGEST_REMOTE_COPY:
        return "s5cmd copies at most 5 GiB within a store"
    return None


def uri_of(place: Location) -> str:
    """As s5cmd takes it: ``s3a`` and ``s3n`` are unknown to it."""
    return place.key if place.is_local else f"s3://{place.bucket}/{place.key}"


def make_line(source: str, destination: str, parts: Parts, flags: Sequence[str] = ()) -> bytes:
    """One line of input for ``s5cmd run``. ``--raw`` turns wildcards off."""
    words = ["cp", "--raw", "-p", str(parts.mebibytes), "-c", str(parts.at_once), *flags, source, destination]
    return (shlex.join(words) + "\n").encode()


def flags_of(kind: str, options: S3Options) -> tuple[str, ...]:
    """Flags of ``cp`` for what is written to a store."""
    if kind == DOWNLOAD or options.sse_type == "none":
        return ()
    key = ("--sse-kms-key-id", options.sse_kms_key_id) if options.sse_kms_key_id else ()
    return ("--sse", options.sse_type, *key)


@dataclass(frozen=True)
class Launch:
    """How the process is started, apart from its credentials."""

    program: str
    s3: S3Options
    s5cmd: S5cmdOptions

    def argv(self, workers: int) -> list[str]:
        """The command line, which never holds a secret."""
        ours = ["--json", "--numworkers", str(workers)]
        if self.s3.anonymous and not self.s5cmd.args.has("no-sign-request"):
            ours.append("--no-sign-request")
        return [self.program, *ours, *self.s5cmd.args.words, "run"]

    def environment(
        self, credentials: Credentials | None, region: str | None, ambient: Mapping[str, str]
    ) -> dict[str, str]:
        """The environment: what is configured, and of the ambient one what does not contradict it.

        Args:
            credentials: None where requests go unsigned or the user's flags choose who signs.
            region: None lets s5cmd ask each bucket.
        """
        found = {name: value for name, value in ambient.items() if not _is_dropped(name)}
        found["AWS_EC2_METADATA_DISABLED"] = "true"
        # The chain was resolved already: the files could only contradict it, unless the user's flags name a profile.
        chooses = self.s5cmd.args.chooses_credentials
        found |= {name: ambient.get(name, "") if chooses else os.devnull for name in _FILES}
        if credentials is not None:
            found |= {"AWS_ACCESS_KEY_ID": credentials.access_key, "AWS_SECRET_ACCESS_KEY": credentials.secret_key}
            if credentials.token:
                found["AWS_SESSION_TOKEN"] = credentials.token
        found |= {"AWS_REGION": region} if region else {}
        found |= {"S3_ENDPOINT_URL": self.s3.endpoint} if self.s3.endpoint else {}
        found |= {"AWS_CA_BUNDLE": str(self.s3.ca_bundle)} if self.s3.ca_bundle else {}
        return self._limits() | found

    def _limits(self) -> dict[str, str]:
        """Limits of the Go runtime, which the user's own environment may replace."""
        limits = {"GOMEMLIMIT": f"{self.s5cmd.memory_limit}B", "GOGC": _GOGC}
        if self.s5cmd.cpulimit:
            limits["GOMAXPROCS"] = str(max(1, math.ceil(self.s5cmd.cpulimit / 100)))
        return limits


def _is_dropped(name: str) -> bool:
    return name.startswith(_DROPPED_PREFIXES) or name in _DROPPED
