"""What identifies a machine goes, what is evidence stays."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.anonymise import anonymise_bundle

UUID = "499aea4a-dfe1-7299-021c-e6759854fa78"


def made(*texts: str) -> str:
    records = [{"read": "/f%d" % number, "status": "ok", "text": text} for number, text in enumerate(texts)]
    return bundle.dump_bundle({"host": "node17", "captured_at": 1.0}, records)


def read(text: str, path: str) -> str:
    return bundle.parse_bundle(text.encode()).read(path).text


@pytest.mark.parametrize(
    "secret",
    [
        "GPU-" + UUID,
        "<serial>1653924057588</serial>",
        "Serial Number                         : 1653924057588",
        "52:54:00:12:34:56",
        "10.20.30.40",
        "root@node17:~#",
    ],
)
def test_identifiers_go(secret: str) -> None:
    value = secret.removeprefix("GPU-").removeprefix("<serial>").removesuffix("</serial>").rpartition(": ")[2]
    assert value.split("@")[-1].split(":~")[0] not in anonymise_bundle(made("before %s after" % secret))


@pytest.mark.parametrize(
    "evidence",
    [
        "00000000:01:00.0",
        "0000:e1:00.0",
        "580.159.04",
        "96.00.A5.00.1A",
        "127.0.0.1",
        "97887 MiB",
        "10de:2bb5",
        "0x13 0x1d",
    ],
)
def test_evidence_stays(evidence: str) -> None:
    assert read(anonymise_bundle(made("a %s b" % evidence)), "/f0") == "a %s b" % evidence


def test_the_same_value_becomes_the_same_replacement() -> None:
    text = anonymise_bundle(made("GPU-" + UUID, "GPU-" + UUID.upper(), "GPU-" + UUID.replace("4", "5")))
    assert read(text, "/f0") == read(text, "/f1") != read(text, "/f2")


def test_the_manifest_says_so() -> None:
    manifest = json.loads(anonymise_bundle(made(), "gpu1").split("\n")[0])
    assert manifest["anonymous"] is True and manifest["host"] == "gpu1"


def test_no_manifest_is_refused() -> None:
    with pytest.raises(ValueError):
        anonymise_bundle("[]\n")


@pytest.mark.parametrize("name", ["host", "nvidia", "vm"])
def test_a_name_that_is_a_word_of_the_evidence_stays(name: str) -> None:
    text = bundle.dump_bundle(
        {"host": name, "captured_at": 1.0}, [{"read": "/f0", "status": "ok", "text": "PCI host bridge, nvidia, vm"}]
    )
    assert read(anonymise_bundle(text, "h"), "/f0") == "PCI host bridge, nvidia, vm"
