"""Facts are packed where nobody else reads them, and come out as they went in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_checks import packed_facts, subject
from ansible.utils.context_objects import CLIArgs

ROOT = Path(__file__).resolve().parents[2]
FACTS: dict[str, Any] = {
    "gpu_host": {"gpus": {"count": 8, "model": None, "text": "{{ 1 / 0 }} \U0001f4a5 \udcff"}, "errors": []},
    "p2p_probe": {"pairs": {"a->b": {"gb_s": 25.5}}},
}


def run_of(monkeypatch: pytest.MonkeyPatch, *playbooks: str, cache: str = "memory") -> None:
    monkeypatch.setattr(packed_facts.context, "CLIARGS", CLIArgs({"args": playbooks}))
    monkeypatch.setattr(packed_facts.constants.config, "get_config_value", lambda _name: cache)


@pytest.mark.parametrize("playbook", ["validate.yml", "playbooks/validate.yml", str(ROOT / "validate.yml")])
def test_in_a_run_of_validate_alone_they_are_texts(playbook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    run_of(monkeypatch, playbook)
    packed = packed_facts.pack_result({"changed": False, "ansible_facts": {**FACTS, "other": {"kept": 1}}})
    assert {key: type(value) for key, value in packed["ansible_facts"].items()} == {
        "gpu_host": str, "p2p_probe": str, "other": dict,
    }  # fmt: skip
    assert packed_facts.unpack_facts(packed["ansible_facts"]) == {**FACTS, "other": {"kept": 1}}


@pytest.mark.parametrize(
    ("playbooks", "cache"),
    [
        (("site.yml",), "memory"),
        (("/somebody/else/validate.yml",), "memory"),
        (("validate.yml", "site.yml"), "memory"),
        (("provision.yml",), "memory"),
        ((), "memory"),
        (("validate.yml",), "jsonfile"),
    ],
)
def test_where_somebody_else_may_read_them_they_stay(
    playbooks: tuple[str, ...], cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run_of(monkeypatch, *playbooks, cache=cache)
    result = {"changed": False, "ansible_facts": FACTS}
    assert packed_facts.pack_result(result) is result
    assert packed_facts.unpack_facts(FACTS) == FACTS


def test_a_failure_without_facts_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    run_of(monkeypatch, str(ROOT / "validate.yml"))
    assert packed_facts.pack_result({"failed": True, "msg": "no"}) == {"failed": True, "msg": "no"}
    assert packed_facts.unpack_facts(None) == {}


def test_checks_see_packed_facts_of_a_host_and_of_its_hypervisor_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_of(monkeypatch, str(ROOT / "validate.yml"))
    guest: dict[str, Any] = {"virtualization": {"placement": "kvm", "vm": True}, "gpus": {"count": 8}}
    hypervisor: dict[str, Any] = {"gpu_host": {"gpus": {"count": 0}}, "proxmox": {"present": True, "guests": []}}

    class Hostvars(dict):  # type: ignore[type-arg]
        def raw_get(self, name: str) -> Any:
            return self[name]

    def look(pack: Any) -> Any:
        variables = {
            "inventory_hostname": "vm",
            "proxmox_host": "pve1",
            "proxmox_vmid": 101,
            "ansible_facts": pack({"ansible_facts": {"gpu_host": guest}})["ansible_facts"],
        }
        variables["hostvars"] = Hostvars(
            vm={}, pve1={"ansible_facts": pack({"ansible_facts": hypervisor})["ansible_facts"]}
        )
        return subject.build_subject(variables, lambda value: value)

    assert look(packed_facts.pack_result) == look(lambda result: result)
