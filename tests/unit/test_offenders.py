"""Lists that cannot forget what was not read, and the reason of last resort."""

from __future__ import annotations

import pytest
from ansible.module_utils.gpu_checks import expressions, unknowns
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.folders import unread_directories, unread_files
from ansible.module_utils.gpu_host.evidence.interface import Fetched, Listing, Outcome, Reading
from ansible.module_utils.gpu_host.evidence.noting import NOTED_LIMIT, NotingEvidence
from ansible.module_utils.gpu_host.evidence.offenders import Offenders, all_of, any_of, list_offenders


def test_an_unread_member_makes_an_empty_list_unknown() -> None:
    assert list_offenders([1, 2], lambda member: False) == []
    assert list_offenders([1, 2], lambda member: None if member == 2 else False) is None
    assert list_offenders([1, 2], lambda member: None if member == 2 else True, str) == ["1"], "what was found stays"
    found = Offenders(unknown=True)
    assert found.listed() is None
    found.judge(True, "x")
    assert found.listed() == ["x"]


@pytest.mark.parametrize("status", ["denied", "failed", "timeout", "not_captured"])
def test_an_answer_that_a_list_needs(status: str) -> None:
    for answer in (Reading("/x", status), Listing("/x", status), Outcome(("x",), status), Fetched("GET", "x", status)):
        found = Offenders()
        found.need(answer)
        assert found.listed() is None
    missing = Offenders()
    missing.need(Reading("/x", "absent"), absent_is_fine=True)
    assert missing.listed() == []


def test_what_was_cut_off_is_not_whole() -> None:
    assert not Reading("/x", "ok", b"x", True).ok and Reading("/x", "ok", b"x").ok
    assert not Outcome(("x",), "ok", rc=0, truncated=True).ok and not Outcome(("x",), "ok", rc=1).succeeded
    assert not Fetched("GET", "x", "ok", truncated=True).ok
    errors = Errors("test")
    errors.unanswered(Reading("/x", "ok", b"x", True))
    errors.unsuccessful(Outcome(("x",), "ok", rc=3))
    assert [entry["problem"].split(":")[0] for entry in errors.entries] == [
        "was cut off",
        "ended with exit code 3 and said nothing",
    ]


def test_three_values() -> None:
    assert (any_of([False, None]), any_of([None, True]), any_of([])) == (None, True, False)
    assert (all_of([True, None]), all_of([None, False]), all_of([])) == (None, False, True)


def test_what_of_a_folder_was_not_read() -> None:
    records = [
        {
            "list": "/d",
            "status": "ok",
            "entries": {"a.conf": {"kind": "file"}, "b.conf": {"kind": "file"}, "c": {"kind": "dir"}},
        },
        {"read": "/d/a.conf", "status": "ok", "text": ""},
        {"read": "/d/b.conf", "status": "denied"},
        {"list": "/none", "status": "absent"},
        {"list": "/shut", "status": "denied"},
    ]
    evidence, errors = BundleEvidence({}, records), Errors("test")
    assert unread_files(evidence, "/d", ".conf", errors) == ["/d/b.conf"]
    assert (unread_files(evidence, "/none", "", errors), unread_files(evidence, "/shut", "", errors)) == ([], None)
    assert unread_directories(evidence, "/d", "x", errors) == ["/d/a.conf/x", "/d/b.conf/x", "/d/c/x"]


def test_what_was_asked_for_in_vain_is_noted() -> None:
    noting = NotingEvidence(
        BundleEvidence({}, [{"read": "/a", "status": "absent"}, {"read": "/b", "status": "denied"}]), "pci"
    )
    noting.read("/a")
    noting.read("/b")
    for number in range(100):
        noting.list("/x%d" % number)
    assert noting.unread[0] == {"subject": "pci", "source": "/b", "problem": "needs root", "needs_root": True}
    assert len(noting.unread) == NOTED_LIMIT
    host = {"pci": {"x": None}, "errors": [], "evidence": {"subjects": ["pci"], "unread": noting.unread[:1]}}
    assert unknowns.explain_unknown(host, ("host", "pci", "x")) == ("needs root: /b", True)


def test_a_default_stands_for_a_null_only_if_it_says_so() -> None:
    plain, replacing = (
        expressions.find_reads("host.a.b | default(false) != true"),
        expressions.find_reads("host.a.b | default('', true) == ''"),
    )
    assert plain.unguarded == plain.defaulted == (("host", "a", "b"),)
    assert replacing.unguarded == replacing.defaulted == ()
    assert expressions.find_reads("host.a.b | default(false, boolean=true)").unguarded == ()
