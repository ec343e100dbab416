"""Keeping secrets out of what a child process printed."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"
#: What names a secret in a URL or a header, whoever's secret it is.
_NAMED = re.compile(
    r"""((?:x-amz-)?(?:signature|credential|security-token)\s*[=:]\s*"?|authorization\s*[=:]\s*"?)[^&,;"\r\n]+""",
    re.IGNORECASE,
)


class Masker:
    """Replaces secrets in text by ``***``.

    A secret is found as it is, percent-encoded once or more in upper or lower case, and escaped
    as in JSON, also where only some of its characters are.
    """

    def __init__(self, secrets: Iterable[str | None]) -> None:
        # The longest first: one may be the start of another.
        found = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        self._pattern = re.compile("|".join(_pattern(secret) for secret in found)) if found else None

    def __call__(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(MASK, text)
        return _NAMED.sub(rf"\1{MASK}", text)


def _pattern(secret: str) -> str:
    return "".join(f"(?:{'|'.join(_forms(character))})" for character in secret)


def _forms(character: str) -> list[str]:
    encoded = "".join(f"%(?:25)*{_any_case(f'{byte:02x}')}" for byte in character.encode("utf-8", "surrogatepass"))
    units = character.encode("utf-16-be", "surrogatepass")
    escaped = "".join(rf"\\+u{_any_case(units[at : at + 2].hex())}" for at in range(0, len(units), 2))
    forms = [rf"\\*{re.escape(character)}", encoded, escaped]
    return [*forms, r"\+"] if character == " " else forms


def _any_case(digits: str) -> str:
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in digits)
