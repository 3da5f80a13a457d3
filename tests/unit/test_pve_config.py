"""The grammar of guest configurations: any text is read, kept byte for byte, and sections are never mixed up."""

from __future__ import annotations

import time

import pytest
from ansible.module_utils.gpu_host.pve import guest_config
from hypothesis import given, settings
from hypothesis import strategies as st

FULL = """#a note with a key in it
#machine: q35
args: -cpu 'host,kvm=off'
memory: 4096
net0: virtio=02:00:00:00:00:01,bridge=vmbr0

[PENDING]
machine: q35
delete: args,!net0

[special:cloudinit]
name: other

[before]
machine: pc-i440fx-5.2
snaptime: 1
"""


def test_the_current_settings_end_at_the_first_section() -> None:
    config = guest_config.parse_config(FULL)
    assert config.current.settings() == {
        "args": "-cpu 'host,kvm=off'",
        "memory": "4096",
        "net0": "virtio=02:00:00:00:00:01,bridge=vmbr0",
    }
    assert guest_config.pending_changes(config.pending) == ({"machine": "q35"}, ["args", "net0"])
    assert config.snapshots == ["before"]
    assert [section.kind for section in config.sections] == ["current", "pending", "special", "snapshot"]


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        *((header, "vm") for header in ("[PENDING]", "[pending]", "[PENDING]  ", "[PENDING]\r")),
        *((header, "lxc") for header in ("[pve:pending]", "[PVE:PENDING]\t")),
    ],
)
def test_every_spelling_of_the_pending_section(header: str, kind: str) -> None:
    assert guest_config.parse_config("cores: 1\n%s\ncores: 2\n" % header, kind).pending is not None
    assert (
        guest_config.parse_config("cores: 1\n%s\ncores: 2\n" % header, "lxc" if kind == "vm" else "vm").pending is None
    )


def test_a_section_that_proxmox_does_not_know_is_kept_apart() -> None:
    config = guest_config.parse_config("name: a\n[:3]\nname: b\ncat: nya~\n[9lives]\nname: c\n")
    assert config.current.settings() == {"name": "a"}
    assert [section.kind for section in config.sections[1:]] == ["unknown", "unknown"]


def test_line_ends_of_windows_and_a_missing_last_one() -> None:
    config = guest_config.parse_config("machine: q35\r\ncores: 4\r\n[snap]\r\ncores: 1")
    assert config.current.settings() == {"machine": "q35", "cores": "4"}
    assert config.sections[1].settings() == {"cores": "1"}


def test_the_last_of_a_repeated_key_counts_and_is_named() -> None:
    section = guest_config.parse_config("cores: 1\ncores: 2\n").current
    assert section.settings() == {"cores": "2"}
    assert section.duplicates() == ["cores"]


def test_raw_keys_repeat_with_a_colon_or_an_equals_sign() -> None:
    text = (
        "lxc.cgroup2.devices.allow: c 195:* rwm\nlxc.cgroup2.devices.allow = c 508:* "
        "rwm\nlxc.apparmor.profile=unconfined\n"
    )
    section = guest_config.parse_config(text, guest_config.CONTAINER).current
    assert section.raw() == [
        ("lxc.cgroup2.devices.allow", "c 195:* rwm"),
        ("lxc.cgroup2.devices.allow", "c 508:* rwm"),
        ("lxc.apparmor.profile", "unconfined"),
    ]
    assert section.settings() == {} and section.duplicates() == []


def test_what_is_no_setting_is_junk_with_its_line() -> None:
    lines = guest_config.parse_config("cores: 1\n...\nMachine: q35\n machine: q35\nempty:\n# fine\n\n").current.lines
    assert [line.number for line in lines if line.is_junk] == [2, 3, 4, 5]


def test_a_description_that_looks_like_keys_and_sections_sets_nothing() -> None:
    config = guest_config.parse_config(
        "#[PENDING]\n#hostpci0: 0000:01:00.0\n#\u00fcber, \u2028 und \x85 dazwischen\nname: x\n"
    )
    assert len(config.sections) == 1 and config.current.settings() == {"name": "x"}


def test_ten_thousand_snapshots_take_no_time() -> None:
    text = "machine: q35\n" + "".join(
        "[snap%d]\nmachine: pc\nhostpci0: 0000:01:00.0\n" % number for number in range(10000)
    )
    began = time.process_time()
    config = guest_config.parse_config(text)
    assert config.current.settings() == {"machine": "q35"} and len(config.snapshots) == 10000
    assert guest_config.render_config(config) == text
    assert time.process_time() - began < 3


def test_lines_are_left_out_and_nothing_else_is_touched() -> None:
    text = "a: 1\r\nlxc.x: 2\n[snap]\nlxc.x: 3"
    assert guest_config.without_lines(guest_config.parse_config(text), [2]) == "a: 1\r\n[snap]\nlxc.x: 3"


KEYS = st.from_regex(r"[a-z][a-z_\-]{0,8}[0-9]{0,3}", fullmatch=True)
VALUES = (
    st.text(st.characters(exclude_characters="\n\r", exclude_categories=("Cs",)), min_size=1)
    .map(str.strip)
    .filter(bool)
)
# Plain strings, which Proxmox does not look at; white space at their ends goes, byte by byte.
PLAIN_KEYS = st.sampled_from(["args", "ostype", "bios", "lock", "scsihw", "citype", "keyboard"])
PLAIN_VALUES = st.from_regex(r"[!-~]([ -~]{0,20}[!-~])?", fullmatch=True).filter(lambda text: '"' not in text)
LINES = st.one_of(
    st.tuples(KEYS, VALUES).map(lambda pair: "%s: %s" % pair),
    st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",))).map(lambda text: "#" + text),
    st.sampled_from(
        [
            "",
            "[PENDING]",
            "[snap]",
            "[special:x]",
            "[:3]",
            "[",
            "]",
            "[open",
            "junk",
            "lxc.a.b: c",
            "lxc.a.b = c",
            "\r",
            "\t",
        ]
    ),
    st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",))),
)


@settings(deadline=None)  # a busy machine is no fault of the reader
@given(st.lists(LINES), st.booleans())
def test_reading_and_writing_gives_the_same_bytes(lines: list[str], ended: bool) -> None:
    text = "\n".join(lines) + ("\n" if ended else "")
    assert guest_config.render_config(guest_config.parse_config(text)) == text


@settings(deadline=None)  # a busy machine is no fault of the reader
@given(st.binary())
def test_binary_junk_is_read(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    config = guest_config.parse_config(text)
    assert guest_config.render_config(config).encode("utf-8", "surrogateescape") == data


@settings(deadline=None)  # a busy machine is no fault of the reader
@given(st.dictionaries(PLAIN_KEYS, PLAIN_VALUES, max_size=20))
def test_what_is_written_is_read(settings: dict[str, str]) -> None:
    text = "".join("%s: %s\n" % item for item in settings.items()) + "[snap]\ncores: 99\n"
    assert guest_config.parse_config(text).current.settings() == settings


@pytest.mark.parametrize(
    ("value", "expected"),
    [("1", True), ("on", True), ("Yes", True), ("0", False), ("off", False), ("maybe", None), (None, None)],
)
def test_booleans(value: str | None, expected: bool | None) -> None:
    assert guest_config.parse_truth(value) is expected


def test_property_strings() -> None:
    assert guest_config.parse_properties("0000:01:00.0,pcie=1,x-vga=on", "host") == {
        "host": "0000:01:00.0",
        "pcie": "1",
        "x-vga": "on",
    }
    assert guest_config.parse_properties("mapping=gpu,,pcie=1", "host") == {"mapping": "gpu", "pcie": "1"}
    assert guest_config.parse_properties("", "host") == {}
