"""The engine: statuses, three-valued conditions, causes.

What is unknown never passes, what is captured is never a template.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_checks import causes, engine, expressions
from hypothesis import example, given
from hypothesis import strategies as st

from .check_samples import item, judge, load


def one(directory: Path, host: dict[str, Any], expected: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return judge(directory, host, item(**more), expected=expected)[0]


HOST = {
    "yes": True,
    "no": False,
    "null": None,
    "name": "H200",
    "count": 8,
    "list": [],
    "inner": {"null": None, "one": 1},
}


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("host.yes", "pass"),
        ("host.no", "fail"),
        ("host.count == 8", "pass"),
        # A null is never good, and never bad.
        ("host.null", "unknown"),
        ("not host.null", "unknown"),
        ("host.null == false", "unknown"),
        ("host.null != 'bad'", "unknown"),
        ("host.null > 3", "unknown"),
        ("host.null in ['a']", "unknown"),
        ("host.null | length == 0", "unknown"),
        ("host.inner.null.deeper == 1", "unknown"),
        ("host.absent == 1", "unknown"),
        ("host.absent.deeper | length > 0", "unknown"),
        ("host['null'] != 'x'", "unknown"),
        ("host.inner.null if host.yes else true", "unknown"),
        # Unless another part decides alone ...
        ("host.no and host.null", "fail"),
        ("host.null and host.no", "fail"),
        ("host.yes or host.null > 3", "pass"),
        ("host.null > 3 or host.yes", "pass"),
        ("(host.null == 1 or host.no) and host.yes", "unknown"),
        ("not (host.null == 1 and host.no)", "pass"),
        ("not (host.null == 1 or host.yes)", "fail"),
        # ... or the author asks about the null.
        ("host.null is none", "pass"),
        ("host.null is none or host.null > 3", "pass"),
        ("host.null == none", "pass"),
        ("host.null | default(0, true) == 0", "pass"),
        ("host.absent is not defined", "pass"),
        ("host.absent is defined and host.absent.x == 1", "fail"),
        # Nulls inside lists are found by Ansible's own engine.
        ("[host.count, none] | max > 1", "unknown"),
        # A condition that is no condition is a fault of the check.
        ("host.count", "error"),
        ("host.name", "error"),
        ("host.count | no_such_filter", "error"),
        ("host.count / 0 == 1", "error"),
        ("expected.gpus.count == host.count", "error"),
        ("expected.gpus.count is not defined or expected.gpus.count == host.count", "pass"),
        ("expected.gpus.count is not defined or expected.gpus.count == host.null", "pass"),
    ],
)
def test_status_of_a_condition(tmp_path: Path, condition: str, status: str) -> None:
    assert one(tmp_path, HOST, that=[condition])["status"] == status
    # The same beside others, asked together with them, changes nothing.
    many = judge(
        tmp_path,
        HOST,
        item(that=[condition]),
        item(id="other", that=["host.yes"]),
        item(id="third", that=["host.count > 1"]),
    )
    assert [result["status"] for result in many] == [status, "pass", "pass"]


@pytest.mark.parametrize(
    ("when", "status"),
    [
        ("host.yes", "pass"),
        ("host.no", "skip"),
        ("host.null", "unknown"),
        ("host.absent > 1", "unknown"),
        (["host.yes", "host.no"], "skip"),
        (False, "skip"),
        (True, "pass"),
        ("host.count", "error"),
    ],
)
def test_when(tmp_path: Path, when: Any, status: str) -> None:
    assert one(tmp_path, {**HOST, "hmm": False}, when=when)["status"] == status


def test_skip_says_why(tmp_path: Path) -> None:
    assert one(tmp_path, HOST, when="host.no", skip="there are {{ host.count }}")["reason"] == "there are 8"
    assert one(tmp_path, HOST, when="host.no")["reason"] == "does not apply: host.no is false"


def test_when_comes_before_needs(tmp_path: Path) -> None:
    assert one(tmp_path, HOST, when="host.no", needs=["host.null"])["status"] == "skip"


def test_unknown_needs(tmp_path: Path) -> None:
    host = {
        **HOST,
        "errors": [
            {"subject": "hmm", "source": "/sys/x", "problem": "needs root", "needs_root": True},
            {"subject": "hmm", "source": "/sys/y", "problem": "needs root", "needs_root": True},
            {"subject": "gpus", "source": "nvidia-smi", "problem": "hung in the kernel: pid 7", "needs_root": False},
        ],
    }
    rootless = one(tmp_path, host, needs=["host.hmm"], that=["host.yes"])
    assert (rootless["status"], rootless["reason"], rootless["needs_root"]) == (
        "unknown",
        "needs root: /sys/x, /sys/y",
        True,
    )
    hung = one(tmp_path, host, needs=["host.gpus.count"], that=["host.yes"])
    assert (hung["reason"], hung["needs_root"]) == ("nvidia-smi hung in the kernel: pid 7", False)
    assert "the P2P probe has not run" in one(tmp_path, host, needs=["host.probe.pairs"], that=["host.yes"])["reason"]


def test_a_failure_says_more_than_an_unknown(tmp_path: Path) -> None:
    result = one(tmp_path, HOST, that=["host.null > 1", "host.no"])
    assert (result["status"], result["failed_condition"]) == ("fail", "host.no")
    assert one(tmp_path, HOST, that=["host.null > 1", "host.yes"])["status"] == "unknown"


@pytest.mark.parametrize("evil", ["{{ 1/0 }}", "{% raw %}", "{{ lookup('pipe', 'touch /tmp/owned') }}", "{#", "}}"])
def test_captured_text_is_data(tmp_path: Path, evil: str) -> None:
    result = one(
        tmp_path,
        {"hmm": evil},
        that=["host.hmm == 'x'"],
        found="it is {{ host.hmm }}",
        remedy=[{"on": "host", "text": "not {{ host.hmm }}"}],
    )
    assert (result["status"], result["found"], result["remedy"]["text"]) == ("fail", "it is " + evil, "not " + evil)
    assert one(tmp_path, {"hmm": evil}, that=["host.hmm != 'x'"])["status"] == "pass"


def test_the_first_remedy_that_applies(tmp_path: Path) -> None:
    remedies = [
        {"when": "host.null == 'lxc'", "on": "guest", "text": "unknown never applies"},
        {
            "when": ["host.yes", "host.count == 8"],
            "on": "hypervisor",
            "text": "{{ host.count }} cards",
            "commands": ["echo {{ host.name }}"],
            "verify": "ls",
        },
        {"on": "host", "text": "else"},
    ]
    remedy = one(tmp_path, {**HOST, "hmm": True}, remedy=remedies)["remedy"]
    assert remedy == {
        **{"number": 2, "on": "hypervisor", "text": "8 cards", "commands": ["echo H200"], "risk": "", "verify": "ls"}
    }


@pytest.mark.parametrize(
    ("placement", "on"),
    [("container", "container_host"), ("lxc", "hypervisor"), ("kvm", "hypervisor"), (None, "hypervisor")],
)
def test_the_host_of_a_container_is_no_hypervisor(tmp_path: Path, placement: str | None, on: str) -> None:
    host = {**HOST, "hmm": True, "virtualization": {"placement": placement}}
    assert one(tmp_path, host, remedy=[{"on": "hypervisor", "text": "x"}])["remedy"]["on"] == on


def test_a_command_that_is_empty_is_not_for_this_host(tmp_path: Path) -> None:
    commands = ["{{ 'qm config 101' if host.no else '' }}", "{{ 'lspci' if host.yes else '' }}"]
    host = {**HOST, "hmm": True}
    assert one(tmp_path, host, remedy=[{"on": "host", "text": "x", "commands": commands}])["remedy"]["commands"] == [
        "lspci"
    ]


def test_the_kind_of_the_hypervisor_stands_in_the_remedy(tmp_path: Path) -> None:
    host = {**HOST, "hmm": True, "virtualization": {"placement": "kvm", "hypervisor_kind": "libvirt"}}
    assert one(tmp_path, host, remedy=[{"on": "hypervisor", "text": "x"}])["remedy"]["hypervisor"] == "libvirt"
    assert "hypervisor" not in one(tmp_path, host, remedy=[{"on": "host", "text": "x"}])["remedy"]


@pytest.mark.parametrize(
    ("when", "caused_by"),
    [("host.yes", ["a"]), ("host.no", []), ("host.null", []), (["host.yes", "host.count == 8"], ["a"])],
)
def test_a_cause_under_a_condition(tmp_path: Path, when: Any, caused_by: list[str]) -> None:
    first = item(id="a", that=["host.no"], explains=[{"check": "b", "when": when}])
    results = judge(tmp_path, HOST, first, item(id="b", that=["host.no"]))
    assert results[1]["caused_by"] == caused_by and results[1]["root_cause"] is not bool(caused_by)


def test_no_remedy_applies(tmp_path: Path) -> None:
    assert (
        one(tmp_path, {**HOST, "hmm": True}, remedy=[{"when": "host.no", "on": "host", "text": "x"}])["remedy"] is None
    )


def test_a_text_that_cannot_be_filled_in_does_not_hide_the_failure(tmp_path: Path) -> None:
    result = one(tmp_path, {"hmm": True}, found="{{ host.absent.deeper }}")
    assert result["status"] == "fail"
    assert "could not be filled in" in result["found"]


def test_one_broken_check_hides_no_other(tmp_path: Path) -> None:
    results = judge(
        tmp_path,
        HOST,
        item(id="a", that=["host.name | int_or_die"]),
        item(id="b", that=["host.no"]),
        item(id="c", that=["host.yes"]),
    )
    assert [result["status"] for result in results] == ["error", "fail", "pass"]
    assert "some.yml" in results[0]["reason"]


def test_expected_sections_are_always_there(tmp_path: Path) -> None:
    assert one(tmp_path, HOST, when="expected.gpus.count is defined")["status"] == "skip"
    assert one(tmp_path, HOST, expected={"gpus": None}, when="expected.gpus.count is defined")["status"] == "skip"
    assert (
        one(tmp_path, HOST, expected={"gpus": {"count": 8}}, that=["expected.gpus.count == host.count"])["status"]
        == "pass"
    )


def chain(*statuses: str) -> list[dict[str, Any]]:
    names = "abcdef"
    return [
        {
            "id": names[number],
            "status": status,
            "explains": [names[number + 1]] if number + 1 < len(statuses) else [],
            "waiver": None,
        }
        for number, status in enumerate(statuses)
    ]


@pytest.mark.parametrize(
    ("statuses", "caused_by"),
    [
        (("fail", "fail", "fail"), {"a": [], "b": ["a"], "c": ["b"]}),
        (("fail", "unknown", "fail"), {"b": ["a"], "c": ["a"]}),
        (("fail", "skip", "fail"), {"c": ["a"]}),
        (("fail", "pass", "fail"), {"c": []}),  # what passed breaks the chain
        (("unknown", "fail"), {"a": [], "b": []}),  # an unknown explains nothing
        (("error", "fail"), {"b": []}),
    ],
)
def test_causes(statuses: tuple[str, ...], caused_by: dict[str, list[str]]) -> None:
    results = chain(*statuses)
    causes.fill_in_causes(results)
    found = {result["id"]: result["caused_by"] for result in results}
    assert {name: found[name] for name in caused_by} == caused_by
    assert [r["root_cause"] for r in results] == [r["status"] == "fail" and not r["caused_by"] for r in results]


def test_a_waived_failure_is_still_a_cause() -> None:
    results = chain("waived", "fail")
    results[0]["waiver"] = {"status": "fail"}
    causes.fill_in_causes(results)
    assert results[1]["caused_by"] == ["a"]
    results[0]["waiver"] = {"status": "unknown"}
    causes.fill_in_causes(results)
    assert results[1]["caused_by"] == []


# Kleene's logic against its definition: unknown means "true or false, whichever", so a value is certain only if both
# readings give it.
_leaves = st.sampled_from(["host.yes", "host.no", "host.null", "host.other"])
_conditions = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("(not {})".format, inner),
    ),
    max_leaves=6,
)


class _Python:
    """Evaluates the conditions of this test, which are Python too."""

    def __init__(self, host: dict[str, Any]) -> None:
        self._host = host

    def condition(self, expression: Any) -> bool:
        return bool(
            eval(str(expression).replace("host.", "host_"), {"host_" + key: value for key, value in self._host.items()})
        )

    def conditions(self, expressions: Any) -> list[Any]:
        return [self.condition(expression) for expression in expressions]

    def text(self, template: str) -> str:
        return template


@given(_conditions)
def test_unknown_only_where_the_null_matters(condition: str) -> None:
    from ansible.module_utils.gpu_checks.check_files import build_checks

    host = {"yes": True, "no": False, "null": None, "other": None}
    (check,) = build_checks({"x.yml": [item(that=[condition])]})
    readings = {
        _Python({**host, "null": a, "other": b}).condition(condition) for a in (True, False) for b in (True, False)
    }
    (result,) = engine.evaluate_checks([check], engine.make_variables(host), _Python(host))
    if result["status"] in ("pass", "fail"):
        assert readings == {result["status"] == "pass"}
    else:
        assert (
            result["status"] == "unknown"
        )  # it may be unknown although every reading agrees (x or not x): that is safe


@example(")(")
@example("a }}{{ b")
@given(st.text(alphabet="ab()[]{}'\"., orandnotif<>=!|+-01", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        expressions.find_reads(text)
    except ValueError:
        return
    operator, operands = expressions.split_expression(text)
    assert operator in ("or", "and", "not", "leaf")
    assert operands


def test_variables_of_a_real_templar_are_not_copied(tmp_path: Path) -> None:
    (check,) = load(tmp_path, item())
    assert check.that == ("host.hmm == false",)
    host = {"hmm": False}
    assert engine.make_variables(host)["host"] is host
