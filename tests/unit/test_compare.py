"""The parts of a comparison: which card is which, what is beyond the spread, how a change is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.gpu_compare import baseline, cards, differences, drift, fact_table, measures, rules, wording
from hypothesis import given
from hypothesis import strategies as st


def host(*ids: str, start: int = 1, **card: Any) -> dict[str, Any]:
    """A host whose cards have these UUIDs, on buses from `start`."""
    devices = {
        "0000:%02x:00.0" % (start + number): {
            "index": number,
            "name": "NVIDIA H200",
            "uuid": name and "GPU-" + name,
            "serial": None,
            "vbios_version": "96.00.A5",
            **card,
        }
        for number, name in enumerate(ids)
    }
    return {"gpus": {"devices": devices, "complete": True}, "virtualization": {"identity": {}}}


def compared(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    verdict = {"summary": {"ready": True}, "msg": "ready"}
    made = baseline.make_baseline("gpu1", before, [], verdict, "2026-11-12T08:00:00+00:00")
    return drift.describe_drift(baseline.decode_baseline(baseline.encode_baseline(made)), now, [], [])


def texts(found: dict[str, Any]) -> list[str]:
    return [change["text"] for change in found["changes"]]


# Cards


def test_a_card_that_moved_is_followed() -> None:
    now = host("b", "a", vbios_version="96.00.A5")
    now["gpus"]["devices"]["0000:02:00.0"]["vbios_version"] = "96.00.99"  # of the card a
    assert texts(compared(host("a", "b"), now)) == [
        "2 GPUs moved: 0000:01:00.0 -> 0000:02:00.0, 0000:02:00.0 -> 0000:01:00.0",
        "VBIOS of GPU 1 (0000:02:00.0): 96.00.A5 -> 96.00.99",
    ]


def test_all_addresses_shift_where_a_bus_is_added() -> None:
    found = texts(compared(host("a", "b", "c", "d"), host("a", "b", "c", "d", start=5)))
    assert found == [
        "4 GPUs moved: 0000:01:00.0 -> 0000:05:00.0, 0000:02:00.0 -> 0000:06:00.0, 0000:03:00.0 -> 0000:07:00.0"
        ", 0000:04:00.0 -> 0000:08:00.0"
    ]


def test_a_card_that_was_replaced() -> None:
    assert texts(compared(host("a", "b"), host("a", "c"))) == [
        "GPU replaced: GPU 1 (0000:02:00.0), GPU-b -> GPU-c",
    ]


def test_a_card_that_is_missing_and_one_that_is_new() -> None:
    assert texts(compared(host("a", "b"), host("a"))) == ["GPU missing: GPU 1 (0000:02:00.0), GPU-b"]
    assert texts(compared(host("a"), host("a", "b"))) == ["GPU added: GPU 1 (0000:02:00.0), GPU-b"]


def test_a_name_with_a_percent_sign_is_text() -> None:
    assert texts(compared(host("a", "b%s%d"), host("a", "c%%"))) == [
        "GPU replaced: GPU 1 (0000:02:00.0), GPU-b%s%d -> GPU-c%%",
    ]


def test_a_card_that_took_the_place_of_another_is_not_compared_with_it() -> None:
    before, now = host("a", "b"), host("b", vbios_version="96.00.99")
    before["p2p"] = {"read": {"0000:01:00.0": {"0000:02:00.0": "OK"}, "0000:02:00.0": {"0000:01:00.0": "OK"}}}
    now["p2p"] = {"read": {"0000:01:00.0": {}}}
    assert texts(compared(before, now)) == [
        "GPU missing: GPU 0 (0000:01:00.0), GPU-a",
        "GPU moved: 0000:02:00.0 -> 0000:01:00.0",
        "VBIOS of GPU 0 (0000:01:00.0): 96.00.A5 -> 96.00.99",
    ]


def test_stand_ins_of_anonymous_bundles_tell_nothing_apart() -> None:
    names = ["00000000-0000-0000-0000-%012x" % number for number in (1, 2)]
    assert compared(host(*names), host(*reversed(names)))["state"] == "same"
    assert cards.is_stand_in("1000000000001") and not cards.is_stand_in("1324523000001")


def test_cards_whose_ids_are_unknown_are_known_by_their_place() -> None:
    assert compared(host("", ""), host("a", "b"))["state"] == "same"
    two = host("", "", pci_id="10de:2335"), host("", "", pci_id="10de:2330")
    assert texts(compared(*two))[0].startswith("2 GPUs replaced: ")


def test_a_card_that_only_the_bus_shows_now_is_the_same_card() -> None:
    now: dict[str, Any] = {
        "gpus": {"devices": None},
        "pci": {"gpus": {"0000:01:00.0": {"vendor_id": "10de", "device_id": "2335", "name": "H200 SXM 141GB"}}},
    }
    found = compared(host("a", pci_id="10de:2335"), now)
    assert found["changes"] == [] and "VBIOS" in found["unknown_now"]
    now["pci"]["gpus"]["0000:01:00.0"]["device_id"] = "2330"
    assert texts(compared(host("a", pci_id="10de:2335"), now))[0].startswith("GPU replaced: 0000:01:00.0, GPU-a -> ")


# Another machine


def machine(*ids: str, uuid: str | None = None, serial: str | None = None) -> dict[str, Any]:
    made = host(*ids)
    made["virtualization"]["identity"] = {"product_uuid": uuid, "board_serial": serial}
    return made


ONE, TWO = "8c7d6e5f-0001-4000-8000-3cecef123456", "8c7d6e5f-0002-4000-8000-3cecef123456"


@pytest.mark.parametrize(
    ("before", "now", "state"),
    [
        (machine("a", "b", uuid=ONE), machine("a", "b", uuid=ONE), "same"),
        (machine("a", "b", uuid=ONE), machine("c", "d", uuid=TWO), "other_machine"),
        (machine("a", "b", serial="OM1"), machine("c", "d", serial="OM2"), "other_machine"),
        (machine("a", "b"), machine("c", "d"), "other_machine"),
        (machine("a", "b", uuid=ONE), machine("c", "d", uuid=ONE), "changed"),  # all cards were replaced
        (machine("a", "b", uuid=ONE), machine("a", "b", uuid=TWO), "changed"),  # the board was
        (machine("a", "b", uuid=ONE), machine("a", "c", uuid=TWO), "other_machine"),  # a card went to another machine
        (machine(uuid=ONE), machine(uuid=TWO), "other_machine"),
        (machine("a", uuid=ONE), machine("a"), "same"),  # not root this time
        (machine(), machine(), "same"),  # nothing tells
        # What many boards have in common tells nothing apart.
        (
            machine("a", uuid="03000200-0400-0500-0006-000700080009"),
            machine("b", serial="Default string"),
            "other_machine",
        ),
        (machine(uuid="03000200-0400-0500-0006-000700080009"), machine(uuid=ONE), "same"),
        (machine(serial="To be filled by O.E.M."), machine(serial="OM2"), "same"),
    ],
)
def test_whether_it_is_the_same_machine(before: dict[str, Any], now: dict[str, Any], state: str) -> None:
    found = compared(before, now)
    assert found["state"] == state
    assert (found["changes"] == []) == (state != "changed")


def test_a_new_board_is_told() -> None:
    assert texts(compared(machine("a", "b", uuid=ONE), machine("a", "b", uuid=TWO))) == [
        "DMI UUID: %s -> %s" % (ONE, TWO)
    ]


# Measured values


def figure(median: float, spread: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"median": median, "min": median - spread / 2, "max": median + spread / 2, **more}


@pytest.mark.parametrize(
    ("before", "now", "floor", "change"),
    [
        (figure(45.2), figure(44.0), 0.05, None),  # less than the floor
        (figure(45.2), figure(22.6), 0.05, -0.5),
        (figure(45.2, 10.0), figure(40.0), 0.05, None),  # less than the spread of the first
        (figure(45.2), figure(40.0, 10.0), 0.05, None),  # ... of the second
        (figure(1.3), figure(13.0), 0.15, 9.0),
        (100.0, 70.0, 0.15, -0.3),
        (figure(45.2, size_mib=256), figure(20.0, size_mib=32), 0.05, None),  # measured otherwise
        (figure(45.2, method="copy_engine"), figure(20.0), 0.05, (20.0 - 45.2) / 45.2),
        (0, 10.0, 0.05, None),
        (None, 10.0, 0.05, None),
        (True, 10.0, 0.05, None),
        (float("nan"), 10.0, 0.05, None),
        ("fast", {}, 0.05, None),
    ],
)
def test_a_difference_within_noise_is_none(before: Any, now: Any, floor: float, change: float | None) -> None:
    found = measures.find_change(before, now, floor)
    assert found == (None if change is None else pytest.approx(change))


def test_what_stands_out_is_beyond_the_spread_of_the_others_and_the_floor() -> None:
    values = {"gpu%d" % number: 45.0 + 0.1 * number for number in range(11)}
    assert measures.find_outliers(values, 0.05)[2] == []
    assert measures.find_outliers({**values, "odd": 40.0}, 0.05)[2] == ["odd"]
    wide = {"gpu%d" % number: 40.0 + 4.0 * number for number in range(11)}
    assert measures.find_outliers({**wide, "odd": 30.0}, 0.05)[2] == []
    assert measures.find_outliers({"a": 45.0, "b": 45.0, "c": 44.9}, 0.05)[2] == []


# What is compared


def test_a_name_that_appears_and_one_that_goes() -> None:
    before = {
        "kernel": {"values": {"iommu": "pt", "quiet": True}},
        "server": {"environment": {"NCCL_P2P_LEVEL": "SYS"}},
    }
    now = {"kernel": {"values": {"iommu": "pt", "amd_iommu": "off"}}, "server": {"environment": {}}}
    assert texts(compared(before, now)) == [
        "kernel parameter quiet: yes -> absent",
        "kernel parameter amd_iommu: absent -> off",
        "environment variable NCCL_P2P_LEVEL of the server: SYS -> absent",
    ]


def test_a_mapping_that_is_unknown_on_one_side_is_not_compared() -> None:
    assert compared({"kernel": {"values": None}}, {"kernel": {"values": {"iommu": "pt"}}})["changes"] == []
    found = compared({"kernel": {"values": {"iommu": "pt", "root": None}}}, {"kernel": {"values": None}})
    assert (found["changes"], found["unknown_now"]) == ([], ["kernel parameter iommu"])


def test_lists_have_no_order_and_say_what_came_and_went() -> None:
    def packages(*versions: str) -> dict[str, Any]:
        rows = [{"name": "lib%d" % number, "version": one, "held": True} for number, one in enumerate(versions)]
        return {"driver": {"packaging": {"packages": rows}}}

    before = packages("1", "2")
    before["driver"]["packaging"]["packages"].reverse()
    assert compared(before, packages("1", "2"))["state"] == "same"
    assert texts(compared(before, packages("1", "3"))) == ["driver packages: lib1 2 held -> lib1 3 held"]
    assert texts(compared(before, packages("1"))) == ["driver packages: without lib1 2 held"]


def test_the_mode_of_a_device_node_is_octal() -> None:
    def node(mode: int) -> dict[str, Any]:
        return {"device_nodes": {"nodes": {"nvidia2": {"mode": mode, "minor": 2}}}}

    assert texts(compared(node(0o666), node(0o660))) == ["mode of /dev/nvidia2: 0666 -> 0660"]


def test_null_that_means_none_is_not_told_as_lost() -> None:
    def option(configured: str | None) -> dict[str, Any]:
        return {"modules": {"nvidia_uvm": {"options": {"uvm_disable_hmm": {"configured": configured, "live": True}}}}}

    assert compared(option("1"), option(None))["unknown_now"] == []


def test_the_table_refuses_two_rules_for_one_fact_and_a_rule_below_another() -> None:
    rule = rules.Rule(("a", "b"), rules.SETTING, "b")
    with pytest.raises(ValueError, match=r"two rules for a\.b"):
        rules.build_tree([rule, rule])
    with pytest.raises(ValueError, match=r"a\.b has a rule, and so has something below it"):
        rules.build_tree([rule, rules.Rule(("a", "b", "c"), rules.NOISE, "x")])


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (True, "", "yes"),
        (None, "", "unknown"),
        ("", "", "none"),
        ([], "", "none"),
        ({}, "", "none"),
        (16, "GB/s", "16 GB/s"),
        (45.2345, "GB/s", "45.2 GB/s"),
        (1564074.0, "MiB", "1564074 MiB"),
        ("absent", "MiB", "absent"),
        ("n/a", "W", "n/a"),
        (["a", "b", "c", "d", "e"], "", "a, b, c and 2 more"),
        ({"b": 1, "a": None}, "", "a=unknown, b=1"),
        ("x" * 200, "", "x" * 78 + " …"),
    ],
)
def test_values_in_words(value: Any, unit: str, text: str) -> None:
    assert wording.format_value(value, unit) == text


# The file


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is no JSON"),
        (b"\xff\xfe", "it is no JSON"),
        (b"[1]", "it holds no facts"),
        (b'{"facts": []}', "it holds no facts"),
        (b'{"facts": {}, "schema": 99}', "a newer version of this project wrote it"),
        (b'{"facts": {}, "schema": 1}', "its 'identity' is missing"),
        (b"[" * 200_000, "it is no JSON"),
        (b" " * (baseline.LARGEST + 1), "it is larger than 4 MiB"),
    ],
)
def test_what_is_no_baseline_is_refused_with_a_reason(data: bytes, said: str) -> None:
    with pytest.raises(baseline.BaselineError, match=said):
        baseline.decode_baseline(data)


def test_one_that_is_too_large_is_not_written() -> None:
    made = {"facts": {"kernel": {"values": {"x%d" % number: "y" * 1000 for number in range(5000)}}}}
    with pytest.raises(baseline.BaselineError, match="more than 4"):
        baseline.encode_baseline(made)


def test_secrets_are_masked() -> None:
    made = {"facts": {"server": {"environment": {"X": "token=hf_abcdefghijklmnopqrstuvwxyz0123456789"}}}}
    assert b"hf_abcdefghij" not in baseline.encode_baseline(made)


@pytest.mark.parametrize("name", ["gpu1", "../../etc/passwd", "a/b", ".hidden", "fe80::1", "müller", "a b", "x" * 60])
def test_the_file_of_a_host_stays_in_its_directory(name: str) -> None:
    made = baseline.name_file(name)
    assert "/" not in made and not made.startswith(".") and made.endswith(".json")
    others = {baseline.name_file(other) for other in ("hidden", "a%2Fb", "a%20b", name + ".previous", name + ".json")}
    assert {made, baseline.name_previous(made)}.isdisjoint(others), "each host has a file of its own"


_LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_ANY = st.recursive(
    _LEAF,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["gpus", "devices", "0000:01:00.0", "uuid", "driver", "version", "dkms", "pci", "probe", "pairs"]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@given(before=st.dictionaries(st.sampled_from(["gpus", "driver", "pci", "virtualization"]), _ANY), now=_ANY)
def test_odd_facts_raise_nothing(before: dict[str, Any], now: Any) -> None:
    facts = rules.keep_compared(json.loads(json.dumps(before)), fact_table.TREE)
    differences.compare_facts(facts, now, fact_table.TREE)
    differences.follow_cards(facts, {"0000:01:00.0": "0000:02:00.0"}, {"0000:03:00.0"}, fact_table.TREE)
    if isinstance(now, dict):
        made = {"identity": baseline.describe_identity(before), "facts": facts, "checks": {}, "saved_at": "x"}
        json.dumps(drift.describe_drift(made, now, [], []))
