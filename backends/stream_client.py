"""The aiobotocore client of the stream backend, made by s3fs: the one place where s3fs is configured."""

from __future__ import annotations

import asyncio
from typing import Any

from .errors import BackendUnavailable
from .s3_access import S3Access
from .s3_errors import translating


def make_session(access: S3Access) -> Any:
    """An aiobotocore session whose credentials come from ``access``, so that there is one chain.

    Raises:
        BackendUnavailable: s3fs or aiobotocore is not installed.
    """
    try:
        import s3fs  # noqa: F401  asked for here, so that its absence shows before any work
        from aiobotocore.credentials import AioCredentials
        from aiobotocore.session import AioSession
        from botocore.credentials import ReadOnlyCredentials
    except ImportError as error:
        raise BackendUnavailable(
            "streams from and to S3 need s3fs", remedy="pip install 'statelift[s3fs]'", backend="stream"
        ) from error

    class Delegated(AioCredentials):  # type: ignore[misc]
        async def get_frozen_credentials(self) -> Any:
            now = access.credentials()
            return ReadOnlyCredentials(now.access_key, now.secret_key, now.token) if now else None

    class Session(AioSession):  # type: ignore[misc]
        async def get_credentials(self) -> Any:
            now = access.credentials()
            return Delegated(now.access_key, now.secret_key, now.token) if now else None

    return Session(profile=access.options.profile)


async def open_client(access: S3Access, session: Any) -> Any:
    """An aiobotocore client for the running loop, made by s3fs.

    Neither s3fs's instance cache nor its listings cache takes part, and botocore retries nothing:
    `run_batch` does, and can be interrupted.
    """
    from s3fs import S3FileSystem

    options, transfer = access.options, access.transfer
    client_kwargs: dict[str, Any] = {"region_name": access.region}
    if options.ca_bundle:
        client_kwargs["verify"] = str(options.ca_bundle)
    elif (options.endpoint or "").startswith("http://"):
        # Else aiobotocore loads all authorities of the system for every client, which takes 30 ms.
        client_kwargs["verify"] = False
    with translating("client"):
        file_system = S3FileSystem(
            anon=options.anonymous,
            endpoint_url=options.endpoint,
            session=session,
            asynchronous=True,
            loop=asyncio.get_running_loop(),
            skip_instance_cache=True,
            use_listings_cache=False,
            client_kwargs=client_kwargs,
            config_kwargs={
                "connect_timeout": transfer.connect_timeout,
                "read_timeout": transfer.stall_timeout,
                "retries": {"mode": "standard", "total_max_attempts": 1},
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
                "s3": {"addressing_style": "path" if options.uses_path_style else "virtual"},
            },
        )
        client = await file_system.set_session()
        if transfer.verify:
            client.meta.events.register("before-call.s3.GetObject", _ask_for_checksums)
        return client


def _ask_for_checksums(params: dict[str, Any], **_: Any) -> None:
    # As a header, not as the parameter ChecksumMode: with that, botocore would check them too, at a higher price.
    params["headers"]["x-amz-checksum-mode"] = "ENABLED"
