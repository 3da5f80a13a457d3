"""modprobe.d as kmod reads it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.linux import modprobe
from host_evidence import Host
from hypothesis import given
from hypothesis import strategies as st


def parsed(text: str) -> modprobe.Configuration:
    result = modprobe.Configuration()
    modprobe.parse_configuration(text, "/etc/modprobe.d/x.conf", result)
    return result


def options(text: str) -> list[tuple[str, str, str | None]]:
    return [(option.module, option.name, option.value) for option in parsed(text).options]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("options nvidia_uvm uvm_disable_hmm=1\n", [("nvidia_uvm", "uvm_disable_hmm", "1")]),
        ("options nvidia-uvm uvm-disable-hmm=1", [("nvidia_uvm", "uvm_disable_hmm", "1")]),
        (
            "  # options nvidia a=1\noptions nvidia b=2 # c=3\n",
            [("nvidia", "b", "2"), ("nvidia", "#", None), ("nvidia", "c", "3")],
        ),
        ("options nvidia \\\n  a=1 \\\n  b=2\n", [("nvidia", "a", "1"), ("nvidia", "b", "2")]),
        (
            'options nvidia NVreg_RegistryDwords="ForceP2P=0x11;RMForceP2PType=1" a=1',
            [("nvidia", "NVreg_RegistryDwords", "ForceP2P=0x11;RMForceP2PType=1"), ("nvidia", "a", "1")],
        ),
        ('options nvidia NVreg_RmMsg="a b"', [("nvidia", "NVreg_RmMsg", "a b")]),
        ('options nvidia x="unclosed y=1', [("nvidia", "x", "unclosed y=1")]),
        (
            "options nvidia-current-uvm uvm_disable_hmm=1",
            [("nvidia_uvm", "uvm_disable_hmm", "1")],
        ),  # Debian's name for the same module
        (
            "options vfio-pci ids=10de:2bb5,10de:22e8 disable_vga=1",
            [("vfio_pci", "ids", "10de:2bb5,10de:22e8"), ("vfio_pci", "disable_vga", "1")],
        ),
        ("options nvidia_drm modeset", [("nvidia_drm", "modeset", None)]),
    ],
)
def test_options(text: str, found: list[Any]) -> None:
    assert options(text) == found


def test_what_modprobe_ignores_is_named_with_its_line() -> None:
    result = parsed("options nvidia\n\nblack nouveau\nblacklist nouveau\n")
    assert [fault.partition(": ")[0] for fault in result.faults] == [
        "/etc/modprobe.d/x.conf:1",
        "/etc/modprobe.d/x.conf:3",
    ]
    assert [command.source for command in result.blacklisted("nouveau")] == ["/etc/modprobe.d/x.conf:4"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nvidia-current-open-uvm", "nvidia_uvm"),
        ("nvidia-current-open", "nvidia"),
        ("nvidia-tesla-470-modeset", "nvidia_modeset"),
        ("nvidia-legacy-390xx", "nvidia"),
        ("nvidia-currently", "nvidia_currently"),
    ],
)
def test_debian_s_names_of_the_modules(text: str, name: str) -> None:
    assert modprobe.module_name(text) == name


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS", "nvidia-current-open"),
        ("install nvidia-uvm modprobe nvidia ; modprobe -i nvidia-current-uvm $CMDLINE_OPTS", None),
        ("install nvidia modprobe -i nvidia $CMDLINE_OPTS", None),
        ("install nvidia /bin/false", None),
        ("options nvidia a=1", None),
    ],
)
def test_the_file_that_an_install_line_takes(line: str, name: str | None) -> None:
    assert modprobe.find_module_file(parsed(line + "\n"), "nvidia") == name


def test_an_install_line_that_does_nothing_is_a_blacklist() -> None:
    assert parsed("install nouveau /bin/false\n").blacklisted("nouveau")
    assert not parsed("install nvidia modprobe nvidia-current $CMDLINE_OPTS\n").blacklisted("nvidia")


def test_a_file_of_an_earlier_directory_hides_its_namesake_and_names_decide_the_order() -> None:
    host = Host()
    for directory, names in {
        "/etc/modprobe.d": ["b.conf", "README"],
        "/run/modprobe.d": ["a.conf"],
        "/usr/lib/modprobe.d": ["b.conf", "C.conf"],
    }.items():
        host.directory(directory, {name: {} for name in names})
        for name in names:
            host.file("%s/%s" % (directory, name), "options nvidia p=%s\n" % directory)
    result = modprobe.read_configuration(host, Errors("modules"))
    # Bytes, not a dictionary's order: C before a before b.
    assert list(result.files) == ["/usr/lib/modprobe.d/C.conf", "/run/modprobe.d/a.conf", "/etc/modprobe.d/b.conf"]
    assert result.options[-1].value == "/etc/modprobe.d"
    assert result.complete is True


def test_a_file_that_cannot_be_read_leaves_the_configuration_incomplete() -> None:
    host = Host().directory("/etc/modprobe.d", {"a.conf": {}}).file("/etc/modprobe.d/a.conf", status="denied")
    errors = Errors("modules")
    assert modprobe.read_configuration(host, errors).complete is False
    assert errors.entries[0]["needs_root"] is True


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    result = parsed(text)
    for option in result.options:
        assert option.module and option.line >= 1
        assert not any(character.isspace() for character in option.name) or '"' in text


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.from_regex(r"[A-Za-z0-9;= ]{0,12}", fullmatch=True)
        ),
        max_size=5,
    )
)
def test_quoted_values_come_back_as_they_were(pairs: list[tuple[str, str]]) -> None:
    line = " ".join('%s="%s"' % pair for pair in pairs)
    assert modprobe.parse_parameters(line) == pairs
