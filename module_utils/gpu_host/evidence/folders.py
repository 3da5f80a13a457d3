"""What of a folder's files could not be read: without it, a list of what they say is not whole."""

from __future__ import annotations

from .errors import Errors
from .interface import ABSENT, Evidence


def unread_files(evidence: Evidence, directory: str, ending: str, errors: Errors) -> list[str] | None:
    """Paths of the files of `directory` with this ending that could not be read; None where it cannot be listed.

    A directory that is not there holds none.
    """
    listing = evidence.list(directory)
    if not listing.ok:
        errors.unanswered(listing, absent_is_fine=True)
        return [] if listing.status == ABSENT else None
    return _unread(evidence, ["%s/%s" % (directory, name) for name in listing.entries if name.endswith(ending)], errors)


def unread_directories(evidence: Evidence, directory: str, name: str, errors: Errors) -> list[str] | None:
    """The same for the file `name` in each directory below `directory`, as /proc and /sys have them."""
    listing = evidence.list(directory)
    if not listing.ok:
        errors.unanswered(listing, absent_is_fine=True)
        return [] if listing.status == ABSENT else None
    return _unread(evidence, ["%s/%s/%s" % (directory, entry, name) for entry in listing.entries], errors)


def _unread(evidence: Evidence, paths: list[str], errors: Errors) -> list[str]:
    found = []
    for path in sorted(paths):
        reading = evidence.read(path)
        errors.unanswered(reading)
        if not reading.ok:
            found.append(path)
    return found
