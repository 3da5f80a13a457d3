"""One report of several: what one run over all hosts would have said; what is lost is named and never ready."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ansible.module_utils.gpu_report import html_report, json_report, junit, markdown_report, merging, terminal
from ansible.module_utils.gpu_report.merging import Part

from . import report_samples as samples

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import merge_reports
import worker_shares

KIND = {"models": {"10de:2bb1": 8}, "names": {"10de:2bb1": "RTX PRO 6000"}, "placement": "bare_metal"}
RUN = {**samples.RUN, "complete": True}


def features(driver: str) -> str:
    from ansible.module_utils.gpu_compare import fact_table

    number = fact_table.ORDER[("driver", "version")]
    return json.dumps({"kind": KIND, "values": {"driver": [number, driver]}, "maps": [], "figures": {}})


def run_of(*names: str, odd: str = "gpu3") -> Any:
    """A collector with these hosts: gpu2 is broken, gpu4 is unreachable, the others are ready."""
    made = samples.run()
    for name in names:
        if name == "gpu4":
            made.failed(name, "Connection refused", unreachable=True)
            continue
        results = (
            samples.broken_host() if name == "gpu2" else [samples.result("driver_loaded"), samples.chipset("pass")]
        )
        given = samples.judged(results)
        made.results(name, {**given, "report_features": features("580.1" if name == odd else "595.2")})
    return made


def report_of(*names: str, **run: Any) -> dict[str, Any]:
    return dict(json.loads(json_report.render_json(run_of(*names).report({**RUN, **run}))))


NAMES = ("gpu1", "gpu2", "gpu3", "gpu4", "gpu10")


@pytest.mark.parametrize("split", [1, 3])
def test_merged_is_what_one_run_would_have_given(split: int) -> None:
    whole = report_of(*NAMES)
    merged = merging.merge_reports([Part("b", report_of(*NAMES[split:])), Part("a", report_of(*NAMES[:split]))])
    parts = merged["run"].pop("parts")
    assert merged == whole and list(merged["hosts"]) == list(whole["hosts"])
    assert whole["alike"]["kinds"][0]["odd"][0]["hosts"] == ["gpu3"], "hosts are compared over all parts"
    assert [part["hosts"] for part in parts] == [5 - split, split]
    assert merging.find_exit_status(merged) == merging.UNREACHABLE
    assert junit.render_junit(merged) == junit.render_junit(whole)
    if split == 1:
        assert html_report.render_html(merged) == html_report.render_html(whole)


def test_the_run_spans_all_parts() -> None:
    early = report_of("gpu1", started_at="2026-01-02T03:04:05+00:00", seconds=10.0)
    late = report_of("gpu3", started_at="2026-01-02T03:05:05+00:00", seconds=5.0, ansible_core="2.19.1")
    run = merging.merge_reports([Part("late", late), Part("early", early)])["run"]
    assert (run["started_at"], run["seconds"], run["ansible_core"]) == (
        early["run"]["started_at"],
        65.0,
        "2.19.1, 2.21.5",
    )
    assert run["playbook"] == "validate.yml" and run["complete"] is True


def test_a_part_without_a_report_is_named_and_its_hosts_are_never_ready() -> None:
    lost = Part("worker 2", problem="it ended with exit status 255", hosts=["gpu7", "gpu8"])
    merged = merging.merge_reports([Part("worker 1", report_of("gpu1"), hosts=["gpu1"]), lost])
    assert {name: host["state"] for name, host in merged["hosts"].items()} == {
        "gpu1": "ready", "gpu7": "not_validated", "gpu8": "not_validated",
    }  # fmt: skip
    assert merged["ready"] is False and merging.find_exit_status(merged) == merging.NOT_READY
    said = "worker 2: it ended with exit status 255"
    shown = "\n".join(line for line, _tone in terminal.render_terminal(merged, 200))
    assert "THE REPORT IS NOT WHOLE. There is no report of " + said in shown
    assert "NO RESULT  gpu7, gpu8: not looked at: " + said in shown
    assert junit.render_junit(merged).decode().count(said) == 3
    assert said in html_report.render_html(merged).decode()
    assert "There is no report of worker 2" in markdown_report.render_markdown(merged).decode()
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text())
    jsonschema.validate(json.loads(json_report.render_json(merged)), schema)


def test_a_lost_part_of_unknown_hosts_is_not_ready_either() -> None:
    merged = merging.merge_reports([Part("a", report_of("gpu1")), Part("b", problem="b/report.json: no such file")])
    assert merged["ready"] is False and merging.find_exit_status(merged) == merging.NOT_WRITTEN
    assert merging.find_exit_status(merging.merge_reports([Part("b", problem="gone")])) == merging.NOT_WRITTEN


def test_hosts_that_the_run_of_a_part_did_not_reach() -> None:
    cut = report_of("gpu1", complete=False)
    merged = merging.merge_reports([Part("worker 1", cut, hosts=["gpu1", "gpu2"])])
    assert merged["hosts"]["gpu2"]["message"] == "not looked at: worker 1: its run ended before it was looked at"
    assert merged["run"]["complete"] is False and merged["ready"] is False


def test_all_ready() -> None:
    merged = merging.merge_reports([Part("a", report_of("gpu1")), Part("b", report_of("gpu3"))])
    assert merged["ready"] is True and merging.find_exit_status(merged) == merging.READY


def test_the_same_name_in_two_reports() -> None:
    with pytest.raises(merging.MergeError, match=r"The host gpu1 is in the reports of a and of b.*NAME=PATH"):
        merging.merge_reports([Part("a", report_of("gpu1")), Part("b", report_of("gpu1"))])
    parts = [Part(name, report_of("gpu1"), prefix=name + "/") for name in ("a", "b")]
    merged = merging.merge_reports(parts)
    assert list(merged["hosts"]) == ["a/gpu1", "b/gpu1"]
    assert merged["alike"]["kinds"][0]["hosts"] == ["a/gpu1", "b/gpu1"]


def spoil(change: Any) -> str:
    report = report_of("gpu2")
    change(report)
    return json.dumps(report)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no whole JSON"),
        (json.dumps(report_of("gpu1"))[:-30], "no whole JSON"),
        ("[]", "no report.json"),
        ("{}", "no report.json"),
        ('{"schema": 2}', "its schema is 2"),
        ('{"schema": 1}', "run, checks or hosts is missing"),
        (spoil(lambda report: report["run"].pop("seconds")), "run.seconds is missing"),
        (spoil(lambda report: report["hosts"].update(gpu2=None)), "the host gpu2 has no state"),
        (spoil(lambda report: report["hosts"]["gpu2"].update(state="fine")), "the host gpu2 has no state"),
        (spoil(lambda report: report["hosts"]["gpu2"].pop("facts")), "the host gpu2 has no facts"),
        (spoil(lambda report: report["checks"].pop("p2p_granted")), "of no check"),
    ],
)
def test_what_is_no_report(text: str, said: str) -> None:
    with pytest.raises(merging.MergeError, match=said):
        merging.read_report(text)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, hosts in (("east", ("gpu1", "gpu2")), ("west", ("gpu1", "gpu3"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_bytes(json_report.render_json(report_of(*hosts)))
    out = ["--reports-dir", str(tmp_path / "out")]
    both = [str(tmp_path / "east"), str(tmp_path / "west" / "report.json")]
    assert merge_reports.main([*both, *out]) == 1
    assert "Nothing was merged. The host gpu1 is in" in capsys.readouterr().err
    assert merge_reports.main(["east=" + both[0], "west=" + both[1], *out]) == 2
    assert "1 of 4 hosts NOT READY" in capsys.readouterr().out
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(written["hosts"]) == ["east/gpu1", "east/gpu2", "west/gpu1", "west/gpu3"]
    assert (tmp_path / "out" / "junit.xml").exists() and (tmp_path / "out" / "report.html").exists()
    assert merge_reports.main([both[1], str(tmp_path / "none"), *out]) == 1
    assert "There is no report of %s" % (tmp_path / "none") in " ".join(capsys.readouterr().out.split())


# Who looks at which hosts
def test_hosts_that_are_judged_together_stay_together() -> None:
    ties = {"pve1": ("", ""), "pve2": ("", "")}
    ties.update({"vm%d" % number: ("pve%d" % (1 + number % 2), "") for number in range(6)})
    ties.update({"rank%d" % number: ("", "deepseek") for number in range(3)})
    ties.update({"gpu%d" % number: ("elsewhere", "") for number in range(20)})
    shares = worker_shares.plan_shares(ties, 4)
    assert sorted(name for share in shares for name in share) == sorted(ties)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for together in (["pve1", "vm0", "vm2", "vm4"], ["pve2", "vm1", "vm3", "vm5"], ["rank0", "rank1", "rank2"]):
        assert any(set(together) <= set(share) for share in shares)


def test_more_workers_than_hosts() -> None:
    assert worker_shares.plan_shares({"gpu1": ("", ""), "gpu2": ("", "")}, 5) == [["gpu1"], ["gpu2"]]
    assert worker_shares.plan_shares({}, 2) == []


def test_ties_are_read_as_ansible_reads_them(tmp_path: Path) -> None:
    from ansible.parsing.vault import VaultLib, VaultSecret

    secret = VaultSecret(b"open sesame")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "password").write_text("open sesame\n")
    hidden = VaultLib([("default", secret)]).encrypt(b"inference_server_group: '{{ model }}'\nmodel: deepseek\n")
    (tmp_path / "group_vars" / "ranks.yml").write_bytes(hidden)
    (tmp_path / "hosts.ini").write_text(
        "[ranks]\ngpu1\ngpu2\n[guests]\nvm1 proxmox_host='{{ rack }}-pve' rack=r7\n[proxmox_hosts]\nr7-pve\n"
    )
    # The secrets are of a process: Ansible takes them once.
    code = (
        "import ansible.module_utils, sys, json; sys.path.insert(0, %r); ansible.module_utils.__path__.append(%r); "
        "import worker_shares as shares; print(json.dumps(shares.read_ties(sys.argv[1:2], '', sys.argv[2:])))"
    ) % (str(ROOT / "scripts"), str(ROOT / "module_utils"))
    words = [sys.executable, "-c", code, str(tmp_path / "hosts.ini"), str(tmp_path / "password")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "gpu1": ["", "deepseek"], "gpu2": ["", "deepseek"], "vm1": ["r7-pve", ""], "r7-pve": ["", ""],
    }  # fmt: skip
    refused = subprocess.run(words[:-1], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "FleetError" in refused.stderr and "vault" in refused.stderr.lower()
