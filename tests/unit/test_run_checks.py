"""Loading of checks (every fault with file and line), their schema, and the action plugin with small fakes."""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible.module_utils.gpu_checks import check_files
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from .check_samples import item, load

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "checks/check.schema.json").read_text())

GOOD = [
    item(),
    item(when=True, skip="x"),
    item(when=["host.a", True], needs=["host.a.b_c"], explains=[], docs="https://example.org"),
    item(remedy=[{"on": "host", "text": "x", "commands": []}]),
    item(
        remedy=[
            {"when": "host.a", "on": "guest", "text": "x", "commands": [], "risk": "y", "verify": "z"},
            {"on": "firmware", "text": "x"},
        ]
    ),
    item(that=[True, "host.a"]),
]
BAD = [
    "a text",
    None,
    {},
    item(id=None),
    item(id="Bad-Id"),
    item(id=3),
    item(title=""),
    item(title="  "),
    item(why=None),
    item(severity="fatal"),
    item(tags=[]),
    item(tags="driver"),
    item(tags=["Driver"]),
    item(tags=[3]),
    item(needs="host.a"),
    item(needs=["facts.a"]),
    item(needs=["host"]),
    item(needs=["host.a-b"]),
    item(when=""),
    item(when=3),
    item(when=[]),
    item(when="{{ host.a }}"),
    item(skip="why"),
    item(that=[]),
    item(that="host.a"),
    item(that=["{% if host.a %}"]),
    item(that=[None]),
    item(found=3),
    item(remedy=[]),
    item(remedy={"on": "host", "text": "x"}),
    item(remedy=["x"]),
    item(remedy=[{"text": "x"}]),
    item(remedy=[{"on": "host"}]),
    item(remedy=[{"on": "moon", "text": "x"}]),
    item(remedy=[{"on": "host", "text": "x", "commands": "ls"}]),
    item(remedy=[{"on": "host", "text": "x", "commands": [""]}]),
    item(remedy=[{"on": "host", "text": "x", "cmds": []}]),
    item(remedy=[{"on": "host", "text": "x", "when": 3}]),
    item(explains="x"),
    item(explains=["A"]),
    item(explains=[{"check": "a"}]),
    item(explains=[{"check": "a", "when": "{{ host.a }}"}]),
    item(explains=[{"when": "host.a"}]),
    item(docs=""),
    item(colour="red"),
]


@pytest.mark.parametrize("content", GOOD)
def test_schema_and_code_agree_on_what_is_good(content: Any) -> None:
    jsonschema.validate([content], SCHEMA)
    check_files.build_checks({"x.yml": [content]})


@pytest.mark.parametrize("content", BAD)
def test_schema_and_code_agree_on_what_is_bad(content: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([content], SCHEMA)
    with pytest.raises(check_files.ChecksError):
        check_files.build_checks({"x.yml": [content]})


def test_our_own_checks_match_the_schema() -> None:
    for path in sorted((ROOT / "checks").glob("*.yml")):
        content = check_files.restore_on_keys(yaml.safe_load(path.read_text()))
        jsonschema.validate(content, SCHEMA)


def test_our_own_checks_load_whole() -> None:
    loader = DataLoader()
    found = check_files.load_checks(
        str(ROOT / "checks"), lambda path: loader.load_from_file(path, trusted_as_template=True)
    )
    assert len({check.id for check in found}) == len(found) > 50


def faults(directory: Path, text: str, **files: str) -> list[str]:
    for name, content in {"a": text, **files}.items():
        (directory / (name + ".yml")).write_text(content)
    loader = DataLoader()
    with pytest.raises(check_files.ChecksError) as caught:
        check_files.load_checks(str(directory), lambda path: loader.load_from_file(path, trusted_as_template=True))
    return str(caught.value).replace(str(directory) + "/", "").split("\n")


HEAD = """\
- id: one
  title: t
  why: w
  severity: error
  tags: [x]
  that: [host.a]
  found: f
  remedy:
    - on: host
      text: t
"""


def test_every_fault_has_its_line(tmp_path: Path) -> None:
    text = (
        HEAD
        + "  colour: red\n"
        + HEAD.replace("one", "two").replace("severity: error", "severity: bad").replace("on: host", "on: moon")
    )
    assert faults(tmp_path, text) == [
        "a.yml:11: check one: unknown key 'colour'; known are: "
        "id, title, why, severity, tags, needs, when, skip, that, found, remedy, explains, docs",
        "a.yml:15: check two: 'severity' must be one of error, warning, info, not 'bad'",
        "a.yml:20: check two: 'remedy' (entry 1) 'on' must be one of host, hypervisor, guest, firmware, controller, "
        "not 'moon'",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (HEAD + HEAD, "a.yml:11: the id 'one' is taken already, in a.yml"),
        (HEAD + "  explains: [two]\n", "a.yml:11: check one explains 'two', which is no check"),
        (
            HEAD + "  explains: [{check: two, when: host.a}]\n",
            "a.yml:11: check one explains 'two', which is no check",
        ),
        (
            HEAD + "  explains: [{check: two, when: hots.a}]\n",
            "a.yml:11: check one: 'hots' is no variable of a check; there are host, expected and inventory_hostname",
        ),
        (HEAD + "  explains: [one]\n", "a.yml:11: checks explain each other in a circle: one -> one"),
        (
            HEAD + "  explains: [two]\n" + HEAD.replace("one", "two") + "  explains: [one]\n",
            "a.yml:11: checks explain each other in a circle: one -> two -> one",
        ),
        (HEAD.replace("host.a]", "host.a ==]"), "a.yml:6: check one: 'host.a ==' does not parse: "),
        (
            HEAD.replace("host.a]", "hots.a]"),
            "a.yml:6: check one: 'hots' is no variable of a check; there are host, expected and inventory_hostname",
        ),
        (HEAD.replace("found: f", "found: '{{ x }}'"), "a.yml:7: check one: 'x' is no variable of a check"),
        (HEAD.replace("found: f", "found: '{{ x'"), "a.yml:7: check one: '{{ x' does not parse: "),
        ("one: two\n", "a.yml:1: must be a list of checks"),
        ("", "a.yml:1: "),
        (HEAD + "  - bad\n    indent: x\n", "a.yml:11: "),
    ],
)
def test_faults(tmp_path: Path, text: str, fault: str) -> None:
    assert faults(tmp_path, text)[0].startswith(fault)


def test_a_part_of_the_checks_may_explain_others(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(HEAD + "  explains: [two]\n")
    assert (
        len(check_files.load_checks(str(tmp_path), lambda path: yaml.safe_load(Path(path).read_text()), strict=False))
        == 1
    )


@pytest.mark.parametrize(("make", "message"), [(False, "No such file"), (True, "holds no")])
def test_no_checks_is_a_fault(tmp_path: Path, make: bool, message: str) -> None:
    directory = tmp_path / "none"
    if make:
        directory.mkdir()
    with pytest.raises(check_files.ChecksError, match=message):
        check_files.load_checks(str(directory), yaml.safe_load)


@functools.cache
def action(name: str) -> Any:
    spec = importlib.util.spec_from_file_location("action_" + name, ROOT / "plugins/action" / (name + ".py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(
    name: str, args: dict[str, Any], task_vars: dict[str, Any], check_mode: bool = False, **shared: Any
) -> dict[str, Any]:
    loader = DataLoader()
    task = SimpleNamespace(
        args=args, action=name, async_val=0, check_mode=check_mode, environment=[], delegate_to=None, diff=False
    )
    plugin = action(name).ActionModule(
        task=task,
        connection=SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nowhere"), transport="ssh"),
        play_context=SimpleNamespace(),
        loader=loader,
        templar=Templar(loader=loader, variables=task_vars),
        shared_loader_obj=SimpleNamespace(**shared),
    )
    result: dict[str, Any] = plugin.run(task_vars=task_vars)
    return result


@pytest.fixture
def some(tmp_path: Path) -> str:
    load(
        tmp_path,
        item(id="a", that=["host.gpus.count == 8"]),
        item(id="b", that=["host.probe.ran"], when="host.probe is defined", tags=["p2p"]),
    )
    return str(tmp_path)


def facts(**more: Any) -> dict[str, Any]:
    return {"inventory_hostname": "gpu1", "ansible_facts": {"gpu_host": {"gpus": {"count": 8}, "errors": []}, **more}}


def test_action(some: str) -> None:
    result = run("run_checks", {"checks_dir": some}, facts())
    assert [check["status"] for check in result["checks"]] == ["pass", "skip"]
    assert (result["failed"], result["changed"], result["msg"]) == (False, False, "ready: 1 checks")


def test_action_sees_other_facts(some: str) -> None:
    result = run("run_checks", {"checks_dir": some, "tags": ["p2p"]}, facts(p2p_probe={"ran": True}))
    assert [check["id"] for check in result["checks"]] == ["b"]
    assert result["failed"] is False


def test_action_sees_the_hypervisor(tmp_path: Path) -> None:
    load(
        tmp_path,
        item(id="a", that=["host.hypervisor.guest.machine == 'q35'", "host.hypervisor.name == 'pve1'"], found="x"),
    )

    class HostVars(dict):  # type: ignore[type-arg]
        raw_get = dict.__getitem__

    hostvars = HostVars(
        pve1={
            "ansible_facts": {
                "proxmox": {"vms": {"101": {"type": "vm", "gpu_count": 1, "machine": "q35"}}, "containers": {}}
            }
        }
    )
    task_vars = {
        **facts(),
        "proxmox_host": trust_as_template("{{ pve }}"),
        "pve": "pve1",
        "proxmox_vmid": 101,
        "hostvars": hostvars,
    }
    result = run("run_checks", {"checks_dir": str(tmp_path)}, task_vars)
    assert result["failed"] is False, result["checks"]


def test_action_without_facts(some: str) -> None:
    with pytest.raises(AnsibleActionFail, match="run the gpu_facts module before"):
        run("run_checks", {"checks_dir": some}, {"ansible_facts": {}})


def test_action_with_broken_checks(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("- id: x\n")
    with pytest.raises(AnsibleActionFail, match=r"a\.yml:1: check x: the key 'title' is missing"):
        run("run_checks", {"checks_dir": str(tmp_path)}, facts())


def test_action_with_a_misspelt_argument(some: str) -> None:
    with pytest.raises(AnsibleActionFail, match="expcted"):
        run("run_checks", {"checks_dir": some, "expcted": {}}, facts())


def test_action_with_a_misspelt_waiver_still_reports(some: str) -> None:
    result = run(
        "run_checks",
        {"checks_dir": some, "waivers": [{"check": "aa", "reason": "x", "expires": "2099-01-01"}]},
        facts(),
    )
    assert result["failed"] is True
    assert result["problems"] == ["waiver 1: there is no check 'aa'; did you mean a?"]
    assert result["checks"][0]["status"] == "pass"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of write_metrics, each time that it ran; a path in /none cannot be written."""
    calls: list[dict[str, Any]] = []

    def execute(_self: Any, name: str, module_args: dict[str, Any], **_more: Any) -> dict[str, Any]:
        calls.append({"module": name, **module_args})
        failed = module_args["path"].startswith("/none/")
        return {"failed": True, "msg": "it cannot be written"} if failed else {"changed": True}

    monkeypatch.setattr(action("run_checks").ActionModule, "_execute_module", execute)
    return calls


def seen(recorded: bool | None) -> dict[str, Any]:
    task_vars = facts()
    task_vars["ansible_facts"]["gpu_host"]["evidence"] = {"recorded": recorded}
    return task_vars


def test_a_live_host_gets_its_metrics_where_it_is_asked_for(some: str, written: list[dict[str, Any]]) -> None:
    result = run("run_checks", {"checks_dir": some, "metrics_directory": "/somewhere"}, seen(False))
    assert (result["failed"], result["changed"]) == (False, True)
    assert [(call["module"], call["path"]) for call in written] == [
        ("write_metrics", "/somewhere/gpu_host_validation.prom")
    ]
    assert 'gpu_host_ready{host="gpu1"} 1\n' in written[0]["content"]


def test_nothing_else_writes_metrics(some: str, written: list[dict[str, Any]]) -> None:
    """Not by default, not for a recorded host or one of which that is not known, and not for a part of a host."""
    assert run("run_checks", {"checks_dir": some}, seen(False))["changed"] is False
    for recorded in (True, None):
        run("run_checks", {"checks_dir": some, "metrics_directory": "/somewhere"}, seen(recorded))
    part = run("run_checks", {"checks_dir": some, "metrics_directory": "/somewhere", "only": ["a"]}, seen(False))
    assert part["part"] == "only 1 of 2 checks were chosen" and written == []


def test_metrics_that_cannot_be_written_fail_the_host(some: str, written: list[dict[str, Any]]) -> None:
    result = run("run_checks", {"checks_dir": some, "metrics_directory": "/none"}, seen(False))
    assert (result["failed"], result["changed"], len(written)) == (True, False, 1)
    assert result["problems"] == ["its metrics are not on the host: it cannot be written"]
    assert [check["status"] for check in result["checks"]] == ["pass", "skip"]


BUNDLE = (
    '{"bundle": 1, "host": "gpu1", "captured_at": 1.0}\n{"read": "/proc/version", "status": "ok", "text": "Linux"}\n'
)


def test_a_bundle_is_read_on_the_controller(tmp_path: Path) -> None:
    (tmp_path / "gpu1.jsonl").write_text(BUNDLE)
    modules = SimpleNamespace(find_plugin=lambda name, mod_type: str(ROOT / "library" / (name + mod_type)))
    result = run("gpu_facts", {"bundle": "gpu1.jsonl"}, {"inventory_dir": str(tmp_path)}, module_loader=modules)
    assert result["ansible_facts"]["gpu_host"]["evidence"]["recorded"] is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "nothere.jsonl: No such file"),
        ("junk", "gpu1.jsonl: not a bundle"),
        (BUNDLE + "{}\n", "line 3: not an evidence record"),
    ],
)
def test_a_bundle_that_is_none(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "gpu1.jsonl").write_text(text)
    modules = SimpleNamespace(find_plugin=lambda name, mod_type: str(ROOT / "library" / (name + mod_type)))
    with pytest.raises(AnsibleActionFail, match=message):
        run(
            "gpu_facts",
            {"bundle": "nothere.jsonl" if text is None else "gpu1.jsonl"},
            {"inventory_dir": str(tmp_path)},
            module_loader=modules,
        )
