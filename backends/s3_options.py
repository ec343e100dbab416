"""How to reach an S3 store: endpoint, region, addressing, credentials, encryption."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .errors import OptionError
from .options import OptionGroup, option, parse_bool


def _endpoint(text: str) -> str:
    scheme, _mark, rest = text.rpartition("://")
    if scheme.lower() not in {"", "http", "https"} or not rest.strip("/"):
        raise ValueError("not a URL such as http://localhost:9000")
    try:
        _port = urlsplit(f"//{rest}").port
    except ValueError as error:
        raise ValueError(f"not a URL such as http://localhost:9000: {error}") from error
    return text.rstrip("/")


def _existing_file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise ValueError("no such file")
    return path


def _encryption(text: str) -> str:
    if text not in {"none", "AES256", "aws:kms"}:
        raise ValueError("one of none, AES256, aws:kms")
    return text


@dataclass(frozen=True, kw_only=True)
class S3Options(OptionGroup):
    """Options ``s3.*`` that every S3 backend shares. What is unset comes from the AWS chain."""

    endpoint: str | None = option(
        "s3.endpoint",
        None,
        parse=_endpoint,
        shown="AWS",
        help="URL of the store, e.g. http://localhost:9000.",
        hadoop=("fs.s3a.endpoint",),
        environment=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    )
    ssl: bool = option(
        "s3.ssl.enabled",
        True,
        parse=parse_bool,
        shown="true",
        help="Whether an endpoint without http:// or https:// speaks TLS.",
        hadoop=("fs.s3a.connection.ssl.enabled",),
    )
    region: str | None = option(
        "s3.region",
        None,
        parse=str,
        shown="AWS chain, else us-east-1",
        help="Region that requests are signed for.",
        hadoop=("fs.s3a.endpoint.region",),
    )
    profile: str | None = option("s3.profile", None, parse=str, help="Profile of the AWS configuration files to use.")
    access_key: str | None = option(
        "s3.access-key",
        None,
        parse=str,
        shown="AWS chain",
        help="Access key id; wins over ambient credentials.",
        aliases=("s3.access.key",),
        hadoop=("fs.s3a.access.key",),
        secret=True,
    )
    secret_key: str | None = option(
        "s3.secret-key",
        None,
        parse=str,
        shown="AWS chain",
        help="Secret access key.",
        aliases=("s3.secret.key",),
        hadoop=("fs.s3a.secret.key",),
        secret=True,
    )
    session_token: str | None = option(
        "s3.session-token",
        None,
        parse=str,
        help="Token of temporary credentials.",
        hadoop=("fs.s3a.session.token",),
        secret=True,
    )
    anonymous: bool = option("s3.anonymous", False, parse=parse_bool, shown="false", help="Send unsigned requests.")
    path_style: bool | None = option(
        "s3.path-style-access",
        None,
        parse=parse_bool,
        shown="true where an endpoint is set",
        help="Address buckets as a path, not as a host name.",
        aliases=("s3.path.style.access",),
        hadoop=("fs.s3a.path.style.access",),
    )
    ca_bundle: Path | None = option(
        "s3.ca-bundle",
        None,
        parse=_existing_file,
        shown="system",
        help="PEM file with the certificate authorities to trust.",
        environment=("AWS_CA_BUNDLE",),
    )
    sse_type: str = option(
        "s3.sse.type", "none", parse=_encryption, help="Encryption of uploads: none, AES256, aws:kms."
    )
    sse_kms_key_id: str | None = option(
        "s3.sse.kms.key-id", None, parse=str, help="KMS key for aws:kms, else the bucket's."
    )

    def __post_init__(self) -> None:
        if (self.access_key is None) != (self.secret_key is None):
            missing = "s3.secret-key" if self.secret_key is None else "s3.access-key"
            raise OptionError(f"{missing} is missing", remedy="set s3.access-key and s3.secret-key together")
        if self.anonymous and self.access_key:
            raise OptionError("s3.anonymous and s3.access-key exclude each other")
        if self.endpoint and "://" not in self.endpoint:
            object.__setattr__(self, "endpoint", f"{'https' if self.ssl else 'http'}://{self.endpoint}")

    @property
    def uses_path_style(self) -> bool:
        return self.path_style if self.path_style is not None else self.endpoint is not None

    @property
    def upload_arguments(self) -> dict[str, str]:
        """Encryption, as botocore names it in the requests that make an object."""
        arguments = {} if self.sse_type == "none" else {"ServerSideEncryption": self.sse_type}
        return {**arguments, "SSEKMSKeyId": self.sse_kms_key_id} if self.sse_kms_key_id else arguments
