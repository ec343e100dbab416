"""From what the user names to copy requests: one file, or everything below a directory or prefix."""

from __future__ import annotations

import os

from ...backends.errors import DestinationError, SourceNotFound, UsageError
from ...backends.options import Configuration
from ...backends.request import CopyRequest, locate
from ..objects import Objects


def one_request(source: str, destination: str) -> CopyRequest:
    """A request for one file; a destination that is a directory gets the file's own name.

    Raises:
        UsageError: the source is a directory, or a bucket without a key.
    """
    location = locate(source)
    if not location.key or location.key.endswith("/") or (location.is_local and os.path.isdir(location.key)):
        raise UsageError(f"{source} is a directory", remedy="add --recursive")
    if _is_directory(destination):
        destination = _below(destination, location.key.rpartition("/")[2])
    size = os.path.getsize(location.key) if location.is_local and os.path.isfile(location.key) else None
    return CopyRequest(source, destination, size=size)


def tree_requests(source: str, destination: str, configuration: Configuration) -> list[CopyRequest]:
    """A request for each object below a prefix, or file below a directory.

    Raises:
        SourceNotFound: there is nothing.
        DestinationError: a key's name would leave the destination's directory.
    """
    prefix = source if source.endswith("/") else source + "/"
    requests = []
    with Objects(configuration) as objects:
        for found in objects.list(prefix):
            name = found.uri[len(prefix) :]
            # Some tools mark a directory by an empty object whose name ends with a slash.
            if name and not name.endswith("/"):
                requests.append(CopyRequest(found.uri, _safely_below(destination, name, found.uri), size=found.size))
    if not requests:
        raise SourceNotFound(f"nothing lies below {prefix}", remedy="check the name")
    return requests


def _is_directory(destination: str) -> bool:
    location = locate(destination)
    return not location.key or destination.endswith("/") or (location.is_local and os.path.isdir(location.key))


def _below(directory: str, name: str) -> str:
    return f"{directory.rstrip('/') if directory.strip('/') else ''}/{name}"


def _safely_below(destination: str, name: str, uri: str) -> str:
    unsafe = {"", ".", ".."} & set(name.split("/"))
    if locate(destination).is_local and (unsafe or "\0" in name):
        raise DestinationError(f"{uri} would not lie below {destination}", remedy="copy it under another name")
    return _below(destination, name)
