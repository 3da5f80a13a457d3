"""What LXC's device rules leave a container, rule by rule, as liblxc builds its program from them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_host.pve import container_access, container_config, guest_config

ALLOW, DENY = "lxc.cgroup2.devices.allow", "lxc.cgroup2.devices.deny"
NODES = {
    "/dev/nvidia%s" % name: {"kind": "char", "major": major, "minor": minor, "mode": 0o666}
    for name, major, minor in (("0", 195, 0), ("1", 195, 1), ("ctl", 195, 255), ("-uvm", 511, 0))
}


def rights(*rules: tuple[str, str], minor: int = 0) -> str:
    read = [container_access.parse_rule(key, value) for key, value in rules]
    assert None not in read
    return container_access.find_granted([rule for rule in read if rule is not None], "c", 195, minor)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], ""),
        ([(ALLOW, "c 195:* rwm")], "rw"),
        ([(ALLOW, "c 195:0 rwm")], "rw"),
        ([(ALLOW, "c 195:1 rwm")], ""),
        ([(ALLOW, "b 195:* rwm")], ""),
        ([(ALLOW, "c 195:* r")], "r"),
        ([(ALLOW, "c 195:* w")], "w"),
        # One rule must hold both.
        ([(ALLOW, "c 195:* r"), (ALLOW, "c 195:* w")], "r"),
        ([(ALLOW, "c *:* rw")], "rw"),
        ([(ALLOW, "a *:* rwm")], "rw"),
        ([(ALLOW, "a")], "rw"),
        ([(ALLOW, "c 195:* rwm"), (DENY, "a")], ""),
        ([(DENY, "a"), (ALLOW, "c 195:* rwm")], "rw"),
        # A deny that repeats an allow takes it back; any other does nothing where everything is denied anyway.
        ([(ALLOW, "c 195:* rwm"), (DENY, "c 195:* rwm")], ""),
        ([(ALLOW, "c 195:* rwm"), (DENY, "c 195:0 rwm")], "rw"),
        ([(ALLOW, "c 195:* rwm"), (DENY, "c 195:* rwm"), (ALLOW, "c 195:* rwm")], "rw"),
        # Where everything is allowed it is the denies that count.
        ([(ALLOW, "a"), (DENY, "c 195:* rwm")], ""),
        ([(ALLOW, "a"), (DENY, "c 195:0 rwm")], ""),
        ([(ALLOW, "a"), (DENY, "c 195:1 rwm")], "rw"),
        ([(ALLOW, "c 195:* rwm # all GPUs")], "rw"),
    ],
)
def test_rights(rules: list[tuple[str, str]], expected: str) -> None:
    assert rights(*rules) == expected


@pytest.mark.parametrize(
    "value", ["c  195:* rwm", "c 195 rwm", "c 195:* rw # two", "195:* rwm", "c 195:*", "all", "c 195:* x"]
)
def test_rules_that_lxc_cannot_read(value: str) -> None:
    assert container_access.parse_rule(ALLOW, value) is None


def faults(text: str) -> list[tuple[str, str]]:
    facts: dict[str, Any] = container_config.read_container(guest_config.parse_config(text, guest_config.CONTAINER))[
        "next_start"
    ]
    container_config.add_mounted_directories(facts, NODES)
    return [(item["node"], item["why"]) for item in container_access.find_access_faults(facts, NODES)]


MOUNT = "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,create=file\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dev0: /dev/nvidia0\n", []),
        ("dev0: /dev/nvidia0,mode=0444\nunprivileged: 1\n", []),
        ("dev0: /dev/nvidia0,deny-write=1\n", [("/dev/nvidia0", "read_only")]),
        ("dev0: /dev/nvidia0\nlxc.cgroup2.devices.deny: c 195:0 rw\n", [("/dev/nvidia0", "forbidden")]),
        (MOUNT + "lxc.cgroup2.devices.allow: c 195:* rwm\n", []),
        (MOUNT + "lxc.cgroup2.devices.allow: c 195:255 rwm\n", [("/dev/nvidia0", "forbidden")]),
        (MOUNT + "lxc.cgroup2.devices.allow: c 195:0 r\n", [("/dev/nvidia0", "read_only")]),
        # A number that no rule names is a stale number, which is another finding.
        (MOUNT + "lxc.cgroup2.devices.allow: c 194:* rwm\n", []),
    ],
)
def test_nodes_that_cannot_be_opened(text: str, expected: list[tuple[str, str]]) -> None:
    assert faults(text) == expected


def test_a_closed_node_of_the_host_in_an_unprivileged_container() -> None:
    text = MOUNT + "lxc.cgroup2.devices.allow: c 195:* rwm\n"
    closed = {**NODES, "/dev/nvidia0": {**NODES["/dev/nvidia0"], "mode": 0o660}}
    for more, expected in (("", []), ("unprivileged: 1\n", ["closed"])):
        facts = container_config.read_container(guest_config.parse_config(text + more, guest_config.CONTAINER))[
            "next_start"
        ]
        assert [item["why"] for item in container_access.find_access_faults(facts, closed)] == expected


def test_a_mounted_directory_brings_its_nodes() -> None:
    text = "lxc.mount.entry: /dev dev/host none bind,create=dir\nlxc.cgroup2.devices.allow: c 195:0 rwm\n"
    assert faults(text) == [("/dev/nvidia1", "forbidden"), ("/dev/nvidiactl", "forbidden")]


@pytest.mark.parametrize(
    ("line", "closed"),
    [
        ("/dev/nvidia0", True),
        ("/dev/nvidia0,mode=0600", True),
        ("/dev/nvidia0,mode=0444", True),
        ("/dev/nvidia0,mode=0666", False),
        ("/dev/nvidia0,gid=44", False),
    ],
)
def test_nodes_for_root_only(line: str, closed: bool) -> None:
    facts = container_config.read_container(guest_config.parse_config("dev0: %s\n" % line, guest_config.CONTAINER))
    assert container_access.root_only(facts["devices"]) == (["/dev/nvidia0"] if closed else [])
