"""What is kept of checks without fault for the runs to come: the same checks, while nothing of them changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_checks import check_cache, check_files, expressions
from ansible.template import is_trusted_as_template

ROOT = Path(__file__).resolve().parents[2]
CHECK = """\
- id: one
  title: t
  why: w
  severity: error
  tags: [x]
  needs: [host.a]
  when: expected.a is defined and not host.b
  that: [host.a == 1, "host.c | default(true, true)"]
  found: "{{ host.a }}"
  remedy:
    - on: host
      text: t
"""


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(check_cache, "KEPT", str(tmp_path / "kept"))
    directory = tmp_path / "checks"
    directory.mkdir()
    (directory / "a.yml").write_text(CHECK)
    return directory


def load(directory: Path) -> list[check_files.Check]:
    """As a new process does."""
    check_cache._read.cache_clear()
    try:
        return check_cache.load_checks_cached(str(directory))
    finally:
        check_cache._read.cache_clear()


def parsed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a new process parses the files."""
    calls = []
    real = check_cache._parse_files
    with monkeypatch.context() as patch:
        patch.setattr(check_cache, "_parse_files", lambda directory: calls.append(1) or real(directory))
        load(directory)
    return bool(calls)


def kept_file(directory: Path) -> Path:
    return Path(check_cache._name_kept(str(directory)))


def test_the_second_run_has_the_same_checks_and_parses_nothing(checks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(checks)
    assert not parsed(checks, monkeypatch)
    second = load(checks)
    assert second == first
    assert all(is_trusted_as_template(text) for text in (*second[0].when, *second[0].that, second[0].found))


def test_what_is_kept_of_our_expressions_is_what_they_say(checks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (ROOT / "checks").glob("p2p*.yml"):
        shutil.copy(path, checks)
    (checks / "a.yml").write_text((ROOT / "checks" / "driver.yml").read_text())
    monkeypatch.setattr(check_files, "_faults_of_graph", lambda good, strict: [])
    load(checks)
    texts = list(expressions._READS)
    before = {text: (expressions.find_reads(text), expressions.split_expression(text)) for text in texts}
    kept = expressions.keep_expressions(texts)
    monkeypatch.setattr(expressions, "_READS", {})
    monkeypatch.setattr(expressions, "_SPLIT", {})
    expressions.take_expressions(kept)
    assert {text: (expressions._READS[text], expressions._SPLIT[text]) for text in texts} == before
    assert len(texts) > 50


@pytest.mark.parametrize(
    "change",
    [
        lambda checks: (checks / "a.yml").write_text(CHECK.replace("title: t", "title: u")),
        lambda checks: (checks / "b.yml").write_text(CHECK.replace("id: one", "id: two")),
        lambda checks: (checks / "a.yml").rename(checks / "c.yml"),
        lambda checks: kept_file(checks).write_text("{"),
        lambda checks: kept_file(checks).write_text("[]"),
        lambda checks: kept_file(checks).write_bytes(kept_file(checks).read_bytes()[:-40]),
        lambda checks: kept_file(checks).chmod(0o666),
        lambda checks: kept_file(checks).unlink(),
    ],
    ids=["changed", "added", "renamed", "damaged", "of another form", "cut off", "written by others", "removed"],
)
def test_anything_else_is_parsed_anew(checks: Path, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    load(checks)
    change(checks)
    assert parsed(checks, monkeypatch)
    assert next(check.title for check in load(checks)) in ("t", "u")


def test_other_code_validates_anew(checks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(checks)
    newer = tmp_path / "rules.py"
    newer.write_text("# another rule\n")
    monkeypatch.setattr(check_cache.rules, "__file__", str(newer))
    assert parsed(checks, monkeypatch)


def test_faults_are_kept_by_nobody(checks: Path) -> None:
    (checks / "a.yml").write_text(CHECK.replace("host.a == 1", "host.a =="))
    for _run in range(2):
        with pytest.raises(check_files.ChecksError, match="does not parse"):
            load(checks)
    assert not kept_file(checks).exists()


def test_a_text_that_is_no_template_does_not_become_one(checks: Path) -> None:
    (checks / "a.yml").write_text(CHECK.replace('"{{ host.a }}"', '!unsafe "{{ host.a }}"'))
    for _run in range(2):
        assert not is_trusted_as_template(load(checks)[0].found)
    assert not kept_file(checks).exists()


def test_where_nothing_can_be_kept_the_checks_are_read(checks: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("in the way")
    assert len(load(checks)) == 1


def test_what_is_kept_is_bounded(checks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_cache, "_KEPT_DIRECTORIES", 2)
    for number in range(4):
        other = checks.parent / ("other%d" % number)
        shutil.copytree(checks, other)
        load(other)
    assert sorted(os.listdir(check_cache.KEPT)) == sorted(
        kept_file(checks.parent / name).name for name in ("other2", "other3")
    )
