"""A private certificate authority, and a server certificate for loopback that it signed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """PEM files: ``authority`` for clients to trust, ``chain`` and ``key`` for the server."""

    authority: Path
    chain: Path
    key: Path

    @property
    def server(self) -> tuple[Path, Path]:
        return self.chain, self.key


def make_certificates(directory: Path) -> Certificates:
    """Write a fresh authority and a certificate for ``localhost`` and ``127.0.0.1``."""
    import trustme

    authority = trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1", "::1")
    made = Certificates(directory / "authority.pem", directory / "chain.pem", directory / "key.pem")
    authority.cert_pem.write_to_path(made.authority)
    server.private_key_pem.write_to_path(made.key)
    for number, pem in enumerate(server.cert_chain_pems):
        pem.write_to_path(made.chain, append=number > 0)
    return made
