"""What makes up a package source: its key after verification, its preferences, the mirror of the distribution."""

from __future__ import annotations

import base64
import os
import re
from typing import Callable

from . import openpgp
from .systems import PlanError


def fetch_key(url: str, wanted: list[str], opener: Callable[[str], bytes]) -> bytes:
    """The key file at `url` after its fingerprints were compared with those wanted. PlanError otherwise."""
    normal = {"".join(fingerprint.split()).upper() for fingerprint in wanted} - {""}
    if not normal:
        raise PlanError(
            "no fingerprint is given for the key %s, and a key is not trusted because it was downloaded. Set the "
            "fingerprints." % url
        )
    try:
        data = opener(url)
    except Exception as error:  # any failure of the network has the same meaning here
        raise PlanError(
            "the key %s cannot be fetched: %s. Check the address, the network and the proxy of this host."
            % (url, error)
        ) from error
    try:
        found = openpgp.read_fingerprints(data)
    except openpgp.KeyFileError as error:
        raise PlanError("the key file %s %s." % (url, error)) from error
    strangers = [fingerprint for fingerprint in found if fingerprint not in normal]
    if strangers:
        raise PlanError(
            "the key file %s holds the key %s, but %s is expected. Nothing was changed. If a new key was published, "
            "compare its fingerprint "
            "on a second way and set it." % (url, ", ".join(strangers), ", ".join(sorted(normal)))
        )
    return data


def pin_text(patterns: list[str], exempt: list[str], wanted: str, rival: str = "") -> str:
    """apt preferences that let only one driver branch (or exact version) of the packages in.

    From any source but the `rival` (`release o=Ubuntu`), which has packages of the same names that do not fit.
    """
    # Only the first record that fits a package counts (apt_preferences(5)), hence this order. 1001 lets apt go back,
    # too.
    version = "%s-*" % wanted if wanted.count(".") else "%s.*" % wanted
    parts = ["Explanation: Written by Ansible. The driver's user space and its kernel module must be one version."]
    records = [" ".join(exempt) + "\nPin: version *\nPin-Priority: 500"] if exempt else []
    records += ["%s\nPin: %s\nPin-Priority: -1" % (" ".join(patterns), rival)] if rival else []
    records += ["%s\nPin: version %s\nPin-Priority: 1001" % (" ".join(patterns), version)]
    records += ["%s\nPin: version *\nPin-Priority: -1" % " ".join(patterns)]
    return (
        "\n\n".join([parts[0] + "\nPackage: " + records[0], *("Package: " + record for record in records[1:])]) + "\n"
    )


def find_mirror(codename: str, directory: str = "/etc/apt") -> str:
    """The address from which this host gets its own distribution; empty if its sources do not say."""
    names = [os.path.join(directory, "sources.list")]
    parts = os.path.join(directory, "sources.list.d")
    names += [os.path.join(parts, name) for name in sorted(os.listdir(parts))] if os.path.isdir(parts) else []
    for name in names:
        try:
            with open(name, encoding="utf-8", errors="replace") as handle:
                text = handle.read()
        except OSError:
            continue
        one_line = re.search(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+%s\s" % re.escape(codename), text, re.MULTILINE)
        if one_line:
            return one_line.group(1)
        for paragraph in re.split(r"\n\s*\n", text):
            uris = re.search(r"^URIs:\s*(\S+)", paragraph, re.MULTILINE)
            if uris and re.search(r"^Suites:.*\b%s(?![\w-])" % re.escape(codename), paragraph, re.MULTILINE):
                return uris.group(1)
    return ""


def read_content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except OSError:
        return None


def armor_key(key: bytes) -> str:
    """A key file as text; apt tells armor from binary by the extension, and .asc is ours."""
    if b"-----BEGIN PGP" in key:
        return key.decode("ascii", "replace")
    body = base64.b64encode(key).decode("ascii")
    lines = [body[start : start + 64] for start in range(0, len(body), 64)]
    return "\n".join(["-----BEGIN PGP PUBLIC KEY BLOCK-----", "", *lines, "-----END PGP PUBLIC KEY BLOCK-----", ""])
