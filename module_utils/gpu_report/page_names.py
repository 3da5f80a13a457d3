"""The file of one host's page, whatever the host is called."""

from __future__ import annotations

import hashlib
import re

# Names that are a file's name on every system and in every address as they are. Capitals are not among them, as some
# file systems do not tell them from small letters; nor is what ends as the names below do, so that no two are one.
_PLAIN = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,78}[a-z0-9])?")
_MARKED = re.compile(r"-[0-9a-f]{16}$")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")  # on Windows, where a share may be
_KEPT = 60  # characters of a name that is not plain


def name_page(host: str) -> str:
    """'gpu1.html' for gpu1. Another name keeps its letters, and ends in the hash of all of it."""
    if _PLAIN.fullmatch(host) and not _MARKED.search(host) and not _RESERVED.fullmatch(host):
        return host + ".html"
    kept = re.sub(r"[^A-Za-z0-9_-]+", "_", host[:_KEPT]).strip("_-") or "host"
    return "%s-%s.html" % (kept, hashlib.sha256(host.encode("utf-8", "surrogatepass")).hexdigest()[:16])
