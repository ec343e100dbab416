"""Sessions, credentials and clients of an S3 store, by botocore's chain, one set per process.

The expensive parts are made on first use and again after a fork.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .ambient import environment_keys, environment_region
from .errors import AccessDenied, OptionError
from .s3_errors import translating
from .s3_options import S3Options
from .transfer_options import TransferOptions

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.session import Session

DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True)
class Credentials:
    """A snapshot of credentials; ``None`` where requests go unsigned (`S3Access.credentials`)."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


class S3Access:
    """What the S3 backends share: who we are, where the store is, and a boto3 client where one is needed."""

    def __init__(self, options: S3Options, transfer: TransferOptions | None = None) -> None:
        self.options = options
        self.transfer = transfer or TransferOptions()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._session: Session | None = None
        self._clients: dict[int, BaseClient] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "transfer": self.transfer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _own(self) -> None:
        if self._pid != os.getpid():
            self._reset()

    def session(self) -> Session:
        """A botocore session with the configured profile, region and credentials."""
        self._own()
        with self._lock:
            if self._session is None:
                self._session = self._new_session()
            return self._session

    def _new_session(self) -> Session:
        import botocore.session

        if self.options.missing_secrets:
            raise OptionError(
                f"{', '.join(self.options.missing_secrets)} did not reach this process",
                remedy="set it on the executors: spark.executorEnv.STATELIFT_S3_SECRET_KEY and its kin",
            )
        with translating("credentials"):
            session = botocore.session.Session(profile=self.options.profile)
            if self.options.access_key and self.options.secret_key:
                session.set_credentials(self.options.access_key, self.options.secret_key, self.options.session_token)
            return session

    @property
    def region(self) -> str:
        """The configured region, else the AWS chain's, else us-east-1."""
        region = self.options.region
        if region is None and self.options.profile is None:
            region = environment_region()
        if region is None:
            with translating("region"):
                region = self.session().get_config_variable("region")
        return str(region or DEFAULT_REGION)

    @property
    def asks_chain(self) -> bool:
        """Whether `credentials` may read files, run programs or ask the network."""
        return not self.options.anonymous and self._plain_keys() is None

    def credentials(self, *, refresh: bool = False) -> Credentials | None:
        """Credentials that are valid now, refreshed by the chain when due; None if anonymous.

        Args:
            refresh: forget what is known and ask the chain again, after a store said they had expired.

        Raises:
            AccessDenied: none are found, or they cannot be refreshed.
        """
        if self.options.anonymous:
            return None
        if refresh:
            self._forget()
        keys = self._plain_keys()
        if keys is not None:
            return Credentials(*keys)
        with translating("credentials"):
            found = self.session().get_credentials()
            if found is None:
                raise AccessDenied(
                    "no credentials found",
                    remedy="set s3.access-key and s3.secret-key, or AWS's own environment, or s3.anonymous",
                )
            frozen = found.get_frozen_credentials()
        return Credentials(str(frozen.access_key), str(frozen.secret_key), frozen.token)

    def _plain_keys(self) -> tuple[str, str, str | None] | None:
        """Keys that need no chain: those of the options, else of the environment."""
        options = self.options
        if options.missing_secrets:
            return None
        if options.access_key and options.secret_key:
            return options.access_key, options.secret_key, options.session_token
        return environment_keys() if options.profile is None else None

    def _forget(self) -> None:
        self._own()
        with self._lock:
            self._session = None
            self._clients.clear()

    def client(self, *, connections: int = 10) -> BaseClient:
        """A shared botocore S3 client (thread-safe) with this many pooled connections."""
        self._own()
        with self._lock:
            if connections not in self._clients:
                self._clients[connections] = self.new_client(connections=connections)
            return self._clients[connections]

    def new_client(self, *, connections: int = 10, retries: int | None = None) -> BaseClient:
        """A client of the caller's own, who closes it; about 5 ms after the first of a process.

        Checksums are asked for only when an operation requires them: many stores other than
        AWS refuse the newer trailers (boto3 #4392).

        Args:
            retries: botocore's own, which cannot be interrupted; by default ``transfer.retries``.
        """
        import botocore
        from botocore.config import Config

        config = Config(
            region_name=self.region,
            signature_version=botocore.UNSIGNED if self.options.anonymous else None,
            max_pool_connections=connections,
            connect_timeout=self.transfer.connect_timeout,
            read_timeout=self.transfer.stall_timeout,
            retries={
                "mode": "standard",
                "total_max_attempts": 1 + (self.transfer.retries if retries is None else retries),
            },
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if self.options.uses_path_style else "virtual"},
        )
        # Not boto3's session: it injects its methods once more with every client (RuntimeError from the second on).
        with self._lock, translating("client"):
            return self.session().create_client(
                "s3",
                endpoint_url=self.options.endpoint,
                verify=str(self.options.ca_bundle) if self.options.ca_bundle else None,
                config=config,
            )

    def close(self) -> None:
        self._own()
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()
