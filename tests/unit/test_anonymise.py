"""What identifies a machine goes, what is evidence stays."""

from __future__ import annotations

import base64
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


def test_a_name_that_is_a_field_of_a_result_leaves_the_result_whole() -> None:
    result = '{"host": "rdma", "look": {"rdma": [1]}}'
    records = [
        {"run": ["p2p_between_hosts"], "status": "ok", "rc": 0, "stdout": result},
        {"read": "/f0", "status": "ok", "text": "root@rdma:~#"},
    ]
    made_anonymous = anonymise_bundle(bundle.dump_bundle({"host": "rdma", "captured_at": 1.0}, records))
    assert json.loads(bundle.parse_bundle(made_anonymous.encode()).run(("p2p_between_hosts",)).text)["look"] == {
        "rdma": [1]
    }
    assert read(made_anonymous, "/f0") != "root@rdma:~#"


LINES = """\
inet6 2a01:4f8:1:2:3:4:5:6/64
hw 02-42-00-aa-bb-01 again 02:42:00:aa:bb:01
id 0123456789abcdef0123456789abcdef
root=PARTUUID=1a2b3c4d-02
port_guid 0x0c42a10300aabb01 and 0c42:a103:00aa:bb01
S/N: ABC1234567
Chassis Serial: ABC1234567
login alice@corp.internal
hostname gpuserver
dev /dev/mapper/gpuserver--vg-root of gpuserver.corp.internal
models /home/alice/models/glm
disk /dev/disk/by-id/nvme-SAMSUNG_S64DNX0R123
"""
LEFT = [
    "2a01",
    "02-42",
    "02:42",
    "0123456789abcdef",
    "1a2b3c4d",
    "0c42",
    "ABC1234567",
    "alice",
    "corp",
    "gpuserver",
    "S64DNX0R",
]


def test_every_form_goes_from_text_and_from_bytes_that_are_none() -> None:
    records = [
        {"read": "/text", "status": "ok", "text": LINES},
        {"read": "/bytes", "status": "ok", "base64": base64.b64encode(b"\xff" + LINES.encode()).decode()},
        {"read": "/home/alice/x", "status": "ok", "text": ""},
        {"list": "/srv", "status": "ok", "entries": {"gpuserver.log": {"kind": "link", "target": "/home/alice/x"}}},
        {"run": ["cat", "/home/alice/x"], "status": "ok", "rc": 0, "stdout": "", "stderr": "gpuserver: no such file"},
    ]
    text = anonymise_bundle(bundle.dump_bundle({"host": "gpuserver", "captured_at": 1.0}, records))
    found = bundle.parse_bundle(text.encode())
    as_text, as_bytes = found.read("/text").text, found.read("/bytes").data or b""
    assert as_bytes == b"\xff" + as_text.encode(), "the same value becomes the same stand-in in both"
    assert [left for left in LEFT if left in text + as_text] == []
    assert as_text.splitlines()[1] == "hw 02-00-00-00-00-01 again 02:00:00:00:00:01"
    guid, again = as_text.splitlines()[4].split()[1::2]
    assert guid == "0x" + again.replace(":", "")
    assert found.read("/home/user1/x").ok and "host.log" in found.list("/srv").entries
    assert "models /home/user1/models/glm" in as_text and "hostname host" in as_text
    assert anonymise_bundle(text) == text, "once more changes nothing"


def test_guests_are_named_anew_and_their_configuration_stays_one() -> None:
    records = [
        {"read": "/etc/pve/qemu-server/101.conf", "status": "ok", "text": "name: customerx\nmachine: q35\n"},
        {
            "run": ["ps"],
            "status": "ok",
            "rc": 0,
            "stdout": "kvm -id 101 -name customerx,debug-threads=on",
            "stderr": "",
        },
    ]
    found = bundle.parse_bundle(anonymise_bundle(bundle.dump_bundle({"host": "pve1"}, records)).encode())
    assert found.read("/etc/pve/qemu-server/101.conf").text == "name: guest1\nmachine: q35\n"
    assert "-name guest1,debug" in found.run(["ps"]).text


def test_a_name_that_is_a_word_of_the_evidence_goes_where_it_is_a_name_only() -> None:
    records = [
        {"read": "/sys/max_link_speed", "status": "ok", "text": "max 32 GT/s"},
        {"read": "/note", "status": "ok", "text": "in /home/max/x, max power"},
    ]
    found = bundle.parse_bundle(anonymise_bundle(bundle.dump_bundle({"host": "h"}, records)).encode())
    assert found.read("/sys/max_link_speed").text == "max 32 GT/s"
    assert found.read("/note").text == "in /home/user1/x, max power"


def test_the_serial_number_of_a_pci_device_goes_from_its_configuration_space() -> None:
    space = bytearray(4096)
    space[0x100:0x104] = (3 | 1 << 16 | 0x150 << 20).to_bytes(4, "little")
    space[0x104:0x10C] = b"\x01\x02\x03\xff\xfe\x06\x07\x08"
    space[0x150:0x154] = (1 | 1 << 16).to_bytes(4, "little")
    path = "/sys/bus/pci/devices/0000:01:00.0/config"
    records = [{"read": path, "status": "ok", "base64": base64.b64encode(bytes(space)).decode()}]
    data = bundle.parse_bundle(anonymise_bundle(bundle.dump_bundle({"host": "h"}, records)).encode()).read(path).data
    space[0x104:0x10C] = bytes(8)
    assert data == bytes(space)


@pytest.mark.parametrize("number", ["OM25CS0042", "AB1", "1234567"])
def test_the_serial_number_of_a_board_goes_however_short_it_is(number: str) -> None:
    files = {
        "product_uuid": "8c7d6e5f-0001-4000-8000-3cecef123456",
        "board_serial": number,
        "bios_date": "06/12/2025",
        "chassis_asset_tag": "OracleCloud.com",
    }
    records = [
        {"read": "/sys/class/dmi/id/" + name, "status": "ok", "text": text + "\n"} for name, text in files.items()
    ]
    lines = [json.dumps({"bundle": 1, "host": "gpuserver"}), *map(json.dumps, records), ""]
    text = anonymise_bundle("\n".join(lines))
    assert number not in text and "8c7d6e5f" not in text
    assert "06/12/2025" in text and "OracleCloud.com" in text
