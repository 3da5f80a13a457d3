"""The report: states of hosts, findings, and the three ways in which it is written."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from ansible.module_utils.gpu_report import files, findings, json_report, junit, phrases, terminal, writers

from . import report_samples as samples

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"


def text_of(report: dict, **options: object) -> str:
    return "\n".join(line for line, _tone in terminal.render_terminal(report, **options)) + "\n"


def compare(name: str, content: str) -> None:
    """Golden files are read by people: change them on purpose, and look at the difference."""
    path = GOLDEN / name
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        pytest.fail("%s did not exist; it does now: read it, and commit it if it is right" % path)
    assert content == path.read_text()


def test_terminal() -> None:
    compare("terminal.txt", text_of(samples.report(), written=("reports/report.json",)))


def test_terminal_when_all_is_well() -> None:
    run = samples.run()
    for name in ("gpu1", "gpu2"):
        run.results(name, samples.judged([samples.result("driver_loaded")]))
    report = run.report(samples.RUN)
    assert report["ready"] is True
    assert text_of(report).strip().split("\n")[0] == "All 2 hosts are ready."
    assert "gpu_host_waivers" not in text_of(report)


def test_json() -> None:
    written = json_report.render_json(samples.report()).decode()
    compare("report.json", json.dumps(json.loads(written), indent=1, ensure_ascii=False) + "\n")
    lines = [line.split(":")[0].strip(' {"') for line in written.splitlines()]
    assert lines == ["schema", "run", "ready", "totals", "checks", "hosts", "gpu3", "gpu10"], (
        "one line per part, and one line per further host"
    )


def test_junit() -> None:
    compare("junit.xml", junit.render_junit(samples.report()).decode())


def test_json_has_the_published_form() -> None:
    schema = json.loads((ROOT / "docs/report.schema.json").read_text())
    jsonschema.validators.validator_for(schema).check_schema(schema)
    jsonschema.validate(json.loads(json_report.render_json(samples.report())), schema)


def test_no_host_is_not_ready() -> None:
    report = samples.run().report(samples.RUN)
    assert report["ready"] is False
    assert "NOTHING WAS VALIDATED" in text_of(report)


@pytest.mark.parametrize("unreachable", [True, False])
def test_a_host_that_failed_before_its_checks_is_not_validated(unreachable: bool) -> None:
    run = samples.run()
    run.failed("gpu1", "no such module", unreachable=unreachable)
    report = run.report(samples.RUN)
    assert report["hosts"]["gpu1"]["state"] == "not_validated"
    assert report["ready"] is False
    assert "no such module" in text_of(report)
    assert ET.fromstring(junit.render_junit(report)).get("errors") == "1"


def test_a_host_that_only_gathered_facts_is_not_validated() -> None:
    run = samples.run()
    run.seen("gpu1")
    assert run.report(samples.RUN)["hosts"]["gpu1"]["state"] == "not_validated"


def test_a_result_without_checks_is_not_validated() -> None:
    run = samples.run()
    run.results("gpu1", {"failed": True, "msg": "The checks cannot be used"})
    host = run.report(samples.RUN)["hosts"]["gpu1"]
    assert (host["state"], host["message"]) == ("not_validated", "The checks cannot be used")


def test_a_failure_after_good_checks_is_not_ready() -> None:
    run = samples.run()
    run.results("gpu1", samples.judged([samples.result("driver_loaded")]))
    run.failed("gpu1", "a later task failed")
    run.results("gpu1", samples.judged([samples.result("p2p_granted")]))
    assert run.report(samples.RUN)["ready"] is False


def test_a_second_part_does_not_heal_the_first() -> None:
    run = samples.run()
    run.results("gpu1", samples.judged([samples.result("driver_loaded", "fail")]))
    run.results("gpu1", samples.judged([samples.result("p2p_granted")]))
    host = run.report(samples.RUN)["hosts"]["gpu1"]
    assert host["state"] == "not_ready"
    assert len(host["results"]) == 2


def test_findings_put_symptoms_under_their_cause() -> None:
    found = findings.group_findings(samples.report())
    assert [finding.check for finding in found.causes] == ["chipset_supports_p2p"]
    assert list(found.causes[0].explains) == ["p2p_granted", "p2p_fast"]
    assert found.symptoms == 2
    assert [unknown.checks for unknown in found.unknown] == [["acs_redirect_off"]]
    assert [finding.check for finding in found.warnings] == ["gpu_persistence_on"]
    assert [finding.check for finding in found.waived] == ["memlock_unlimited"]


def test_one_finding_for_all_hosts_that_have_it() -> None:
    run = samples.run()
    for number in range(30):
        results = samples.broken_host()
        results[1]["found"] = "i440FX chipset, host %d" % (number % 3)
        run.results("gpu%d" % number, samples.judged(results))
    report = run.report(samples.RUN)
    (finding,) = findings.group_findings(report).causes
    assert len(finding.hosts) == 30
    assert len(finding.found) == 3
    assert text_of(report).count("qm set 101 --machine q35") == 1


def test_a_command_that_names_the_host_does_not_part_the_hosts() -> None:
    run = samples.run()
    for host in ("gpu2", "gpu22", "gpu3"):
        at = "0000:02:00.0" if host == "gpu3" else "0000:01:00.0"
        verify = "ansible-playbook validate.yml -l %s" % host
        remedy = {
            "on": "host",
            "text": "Reset it.",
            "commands": ["nvidia-smi -r -i %s" % at],
            "risk": "",
            "verify": verify,
        }
        run.results(host, samples.judged([samples.result("gpu_ok", "fail", found="bad", remedy=remedy)]))
    first, second = findings.group_findings(run.report(samples.RUN)).causes
    assert (first.hosts, first.remedy and first.remedy["verify"]) == (
        ["gpu2", "gpu22"],
        "ansible-playbook validate.yml -l gpu2,gpu22",
    )
    assert (second.hosts, second.remedy and second.remedy["verify"]) == (
        ["gpu3"],
        "ansible-playbook validate.yml -l gpu3",
    ), "another command"


def test_a_symptom_of_a_waived_cause_is_shown() -> None:
    waiver = {"reason": "soon", "expires": "2027-01-01", "expired": False, "status": "fail"}
    run = samples.run()
    run.results(
        "gpu1",
        samples.judged([samples.chipset("waived", waiver=waiver), samples.result("p2p_granted", "fail", found="NS")]),
    )
    found = findings.group_findings(run.report(samples.RUN))
    assert [finding.check for finding in found.causes] == ["p2p_granted"]
    assert found.causes[0].caused_by == ["chipset_supports_p2p"]


def test_a_warning_that_explains_an_error_stands_among_the_causes() -> None:
    run = samples.run()
    results = [samples.chipset(), samples.result("p2p_granted", "fail", found="NS")]
    results[0]["severity"] = "warning"
    run.results("gpu1", samples.judged(results))
    assert [finding.check for finding in findings.group_findings(run.report(samples.RUN)).causes] == [
        "chipset_supports_p2p"
    ]


def test_escape_sequences_and_controls_never_reach_a_report() -> None:
    run = samples.run()
    run.results(
        "gpu1",
        samples.judged(
            [samples.result("driver_loaded", "fail", found="\x1b[2J\x1b]0;title\x07evil\x00\ufffe \u202eabc")]
        ),
    )
    report = run.report(samples.RUN)
    assert not [character for character in text_of(report) if ord(character) < 32 and character != "\n"]
    assert "evil" in text_of(report)
    ET.fromstring(junit.render_junit(report))


def test_commands_are_never_wrapped() -> None:
    command = "echo " + "x" * 300 + " && true"
    run = samples.run()
    results = [samples.chipset()]
    results[0]["remedy"]["commands"] = [command]
    run.results("gpu1", samples.judged(results))
    assert command in text_of(run.report(samples.RUN)).split("\n")


def test_nothing_else_is_wider_than_asked() -> None:
    lines = text_of(samples.report(), width=60).split("\n")
    assert [
        line for line in lines if len(line) > 60 and not line.startswith("gpu_host_waivers:")
    ] == []  # that one is to be copied


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "new" / "report.json"
    files.write_file(str(target), b"old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        files.write_file(str(target), b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in target.parent.iterdir()] == ["report.json"]


def test_a_report_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file, where a directory should be")
    written, problems = writers.write_all(samples.report(), str(tmp_path / "reports"))
    assert written == []
    assert len(problems) == len(writers.WRITERS)
    assert "report.json cannot be written" in problems[0]


def test_one_broken_writer_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(writers.WRITERS, "report.json", lambda report: report["nothing"])
    written, problems = writers.write_all(samples.report(), str(tmp_path))
    assert str(tmp_path / "junit.xml") in written
    assert "KeyError" in problems[0]


@pytest.mark.parametrize(("count", "text"), [(1, "1 host"), (0, "0 hosts"), (5, "5 hosts")])
def test_words(count: int, text: str) -> None:
    assert phrases.format_count(count, "host") == text
