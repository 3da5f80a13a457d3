"""One container: device nodes by devN lines and by hand-written rules.

The numbers of today are compared with those of the rules.
"""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_host.pve import container_config, guest_config

OLD = """arch: amd64
hostname: ct
lxc.cgroup2.devices.allow: c 195:* rwm   # /dev/nvidia*
lxc.cgroup2.devices.allow = c 507:* rwm
lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
lxc.mount.entry: /dev/nvidiactl dev/nvidiactl none bind,create=file
lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file
"""
NEW = """dev0: /dev/nvidia0,mode=0666
dev1: path=/dev/nvidiactl,gid=44
dev2: /dev/nvidia-uvm
dev4: /dev/dri/by-path/pci-0000:07:00.0-card,deny-write=1
features: nesting=1,keyctl=1
unprivileged: 1
"""
MAJORS = {"nvidia": 195, "nvidia-uvm": 511, "nvidia-caps": 236}


def read(text: str) -> dict[str, Any]:
    return container_config.read_container(guest_config.parse_config(text, guest_config.CONTAINER))


def test_old_style() -> None:
    facts = read(OLD)
    assert [(rule["major"], rule["minor"], rule["access"]) for rule in facts["rules"]] == [
        (195, None, "rwm"),
        (507, None, "rwm"),
    ]
    assert facts["nodes"]["/dev/nvidia0"] == {"by": "mount", "optional": True, "mode": None}
    assert facts["nodes"]["/dev/nvidiactl"]["optional"] is False
    assert container_config.missing_nodes(facts["nodes"]) == []
    assert facts["unprivileged"] is False


def test_a_number_that_changed_with_the_boot() -> None:
    facts = read(OLD)
    assert container_config.stale_rules(facts, MAJORS, {}) == [
        {"node": "/dev/nvidia-uvm", "major": 511, "allowed": [195, 507]}
    ]
    assert container_config.stale_rules(facts, {**MAJORS, "nvidia-uvm": 507}, {}) == []
    # The node itself says it better than /proc/devices.
    assert container_config.stale_rules(facts, MAJORS, {"/dev/nvidia-uvm": 507}) == []
    # Without the driver nothing can be said of the number.
    assert container_config.stale_rules(facts, {}, {}) == []


def test_a_rule_for_every_device_is_never_stale() -> None:
    assert container_config.stale_rules(read(OLD + "lxc.cgroup2.devices.allow: a\n"), MAJORS, {}) == []
    assert container_config.stale_rules(read(OLD + "lxc.cgroup2.devices.allow: c *:* rwm\n"), MAJORS, {}) == []


def test_rules_of_cgroup_version_1_allow_nothing() -> None:
    facts = read(
        "lxc.cgroup.devices.allow: c 195:* rwm\nlxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,create=file\n"
    )
    assert facts["cgroup1_rules"] == ["c 195:* rwm"]
    assert [item["node"] for item in container_config.stale_rules(facts, MAJORS, {})] == ["/dev/nvidia0"]


def test_new_style() -> None:
    facts = read(NEW)
    assert facts["devices"][1] == {
        "key": "dev1",
        "path": "/dev/nvidiactl",
        "mode": None,
        "uid": None,
        "gid": 44,
        "deny_write": False,
        "problem": None,
    }
    assert (
        facts["devices"][3]["path"] == "/dev/dri/by-path/pci-0000:07:00.0-card"
        and facts["devices"][3]["deny_write"] is True
    )
    assert set(facts["nodes"]) == {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"}
    assert facts["features"] == {"nesting": "1", "keyctl": "1"} and facts["unprivileged"] is True
    assert container_config.stale_rules(facts, MAJORS, {}) == []


def test_missing_nodes_and_lines_for_them_with_free_numbers() -> None:
    facts = read("dev0: /dev/nvidia0\ndev2: /dev/nvidiactl\n")
    assert container_config.missing_nodes(facts["nodes"]) == ["/dev/nvidia-uvm"]
    assert container_config.suggested_devices(facts) == ["-dev1 /dev/nvidia-uvm,mode=0666"]
    assert container_config.missing_nodes({}) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"]
    assert container_config.gpu_minors({"/dev/nvidia10": {}, "/dev/nvidia2": {}, "/dev/nvidiactl": {}}) == [2, 10]


def test_pending_lines_are_not_in_force() -> None:
    facts = read("dev0: /dev/nvidia0\n[pve:pending]\ndev1: /dev/nvidiactl\ndelete: dev0\n[snap]\ndev9: /dev/nvidia9\n")
    assert set(facts["nodes"]) == {"/dev/nvidia0"} and set(facts["next_start"]["nodes"]) == {"/dev/nvidiactl"}
    assert facts["pending_gpu_keys"] == ["dev0", "dev1"]


@pytest.mark.parametrize("value", ["", "c", "c 195 rwm", "c x:y rwm", "c 195:0 zzz", "\x00"])
def test_a_rule_that_cannot_be_read_is_left_out(value: str) -> None:
    assert container_config.parse_rule("lxc.cgroup2.devices.allow", value) is None


@pytest.mark.parametrize("value", ["", "/dev/nvidia0", "   "])
def test_a_mount_that_cannot_be_read_is_left_out(value: str) -> None:
    assert container_config.parse_mount(value) is None
