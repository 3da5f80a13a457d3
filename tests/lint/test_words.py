"""Plain English, as far as a list of words can hold it: tests/lint/words.yml."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = yaml.safe_load((ROOT / "tests" / "lint" / "words.yml").read_text())
KINDS = {".md", ".py", ".yml", ".j2", ".sh", ".txt", ".toml", ".cfg", ""}
# Words of others: recordings, licences; and the list itself.
LEFT_OUT = ("tests/fixtures/", "tests/lint/words.yml", "tests/lint/test_words.py", "LICENSE", "constraints.txt")


def written_here() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    paths = [ROOT / name for name in listed if not name.startswith(LEFT_OUT)]
    return [path for path in paths if path.suffix in KINDS and path.is_file() and not path.is_symlink()]


@pytest.mark.parametrize("rule", RULES, ids=[rule["pattern"] for rule in RULES])
def test_the_word_does_not_come_back(rule: dict[str, str]) -> None:
    pattern = re.compile(rule["pattern"], re.IGNORECASE)
    found = []
    for path in written_here():
        text = path.read_text(encoding="utf-8", errors="replace")
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append("%s:%d: %s" % (path.relative_to(ROOT), line, match.group().strip()))
    assert found == [], "write instead: %s" % rule["instead"]


@pytest.mark.parametrize(
    "sentence",
    [
        "one test case a host",
        "half a second a host",
        "It runs on the metal.",
        "as root (-b): what needs root is unknown without\n",
        "490 checks on 4 hosts: 234 passed",
        "it costs the others their haste",
        "other systems are supported by table and say so",
        "`wish` is auto",
    ],
)
def test_the_list_knows_what_it_was_made_for(sentence: str) -> None:
    assert any(re.search(rule["pattern"], sentence, re.IGNORECASE) for rule in RULES)


@pytest.mark.parametrize(
    "sentence", ["give each a line of its own", "It is a host.", "it checks a host and a GPU", "one test case per host"]
)
def test_the_list_leaves_good_sentences_alone(sentence: str) -> None:
    assert [rule["pattern"] for rule in RULES if re.search(rule["pattern"], sentence, re.IGNORECASE)] == []
