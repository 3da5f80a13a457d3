"""Keys: fingerprints without GnuPG, and what becomes of a file that is not what was expected."""

from __future__ import annotations

import base64
import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.gpu_provision import apt_sources, openpgp
from ansible.module_utils.gpu_provision.systems import PlanError
from hypothesis import given
from hypothesis import strategies as st


def packet(body: bytes, tag: int = 6, new: bool = False) -> bytes:
    if new:
        return bytes([0xC0 | tag, len(body)]) + body
    return bytes([0x80 | tag << 2 | 1]) + len(body).to_bytes(2, "big") + body


KEY = packet(b"\x04\x5f\x00\x00\x00\x01" + bytes(40))
OTHER = packet(b"\x04\x5f\x00\x00\x01\x01" + bytes(40), new=True)
USER = packet(b"someone <someone@example.org>", tag=13)


def armor(data: bytes) -> bytes:
    body = base64.encodebytes(data).decode()
    return (
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\nVersion: x\n\n%s=abcd\n-----END PGP PUBLIC KEY BLOCK-----\n" % body
    ).encode()


@pytest.mark.skipif(not shutil.which("gpg"), reason="gpg is not installed")
@pytest.mark.parametrize("algorithm", ["rsa2048", "ed25519"])
def test_same_fingerprint_as_gpg(tmp_path: Path, algorithm: str) -> None:
    home = tmp_path / "g"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet"]
    subprocess.run(
        [*gpg, "--passphrase", "", "--quick-gen-key", "t@example.org", algorithm, "sign", "1y"],
        check=True,
        capture_output=True,
    )
    listing = subprocess.run([*gpg, "--with-colons", "--list-keys"], check=True, capture_output=True, text=True).stdout
    expected = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr"))
    for option in ([], ["--armor"]):
        data = subprocess.run([*gpg, *option, "--export"], check=True, capture_output=True).stdout
        assert openpgp.read_fingerprints(data) == [expected]
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)


def test_every_key_of_a_file_counts() -> None:
    assert len(openpgp.read_fingerprints(KEY + USER + OTHER)) == 2
    assert openpgp.read_fingerprints(armor(KEY + USER + OTHER)) == openpgp.read_fingerprints(KEY + USER + OTHER)
    assert openpgp.read_fingerprints(armor(KEY) + armor(OTHER)) == openpgp.read_fingerprints(KEY + OTHER)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>404</html>",
        KEY[:-1],
        USER,
        b"-----BEGIN PGP PUBLIC KEY BLOCK-----\ncut",
        armor(KEY).replace(b"A", b"*"),
    ],
)
def test_no_key_file(data: bytes) -> None:
    with pytest.raises(openpgp.KeyFileError):
        openpgp.read_fingerprints(data)


@given(st.binary(max_size=400))
def test_junk_is_refused_or_read_never_a_crash(data: bytes) -> None:
    for candidate in (data, KEY + data, armor(data)):
        with contextlib.suppress(openpgp.KeyFileError):
            assert openpgp.read_fingerprints(candidate)


def test_a_second_key_in_the_file_is_refused() -> None:
    wanted = openpgp.read_fingerprints(KEY)
    assert apt_sources.fetch_key("u", [" ".join(wanted[0]).lower()], lambda _url: KEY + USER) == KEY + USER
    with pytest.raises(PlanError, match="holds the key %s" % openpgp.read_fingerprints(OTHER)[0]):
        apt_sources.fetch_key("u", wanted, lambda _url: KEY + USER + OTHER)


@pytest.mark.parametrize("wanted", [[], [""], [" "]])
def test_no_fingerprint_is_no_trust(wanted: list[str]) -> None:
    with pytest.raises(PlanError, match="not trusted because it was downloaded"):
        apt_sources.fetch_key("u", wanted, lambda _url: KEY)


def test_unreachable_key_names_the_address() -> None:
    def opener(_url: str) -> bytes:
        raise OSError("timed out")

    with pytest.raises(PlanError, match="https://x/key cannot be fetched: timed out"):
        apt_sources.fetch_key("https://x/key", ["A" * 40], opener)
