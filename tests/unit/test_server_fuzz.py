"""A recorded server, damaged at random.

The facts keep their keys, nothing is raised, and what cannot be seen is never called ready.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import inference_server_facts
import pytest
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_server import gather, stall, units, watching

SERVING = Path(__file__).resolve().parents[1] / "fixtures" / "hosts" / "serving.jsonl.gz"
# What the server's own readers read; the rest of the bundle is other readers' concern.
OWN = (
    "/proc/4",
    "/proc/net",
    "/root/",
    "/opt/",
    "/etc/nccl",
    "date",
    "nvidia-smi --query",
    "http://",
    "systemctl",
    "find",
    "/proc/stat",
)
# What is a number to one function of Python and not to another, and what none can hold.
ODD = ("①", "inf", "nan", "-1", "1e999", "9" * 400, "9" * 5000, "2" + "0" * 36, "٣", "0x1f", "")
STATUSES = ("absent", "denied", "failed", "timeout", "not_captured", "hung")


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(SERVING.read_bytes()).decode().splitlines()[1:]]


def name_of(record: dict[str, Any]) -> str:
    value = next(record[key] for key in ("read", "list", "run", "fetch") if key in record)
    return value if isinstance(value, str) else " ".join(value)


def facts(changed: list[dict[str, Any]]) -> dict[str, Any]:
    found = inference_server_facts.facts(bundle.BundleEvidence({"captured_at": 1775780000.0}, changed), {})[
        "ansible_facts"
    ]["inference_server"]
    assert isinstance(found, dict)
    return found


def damaged(record: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    changed = dict(record)
    if "list" in record:
        return {**changed, "status": chance.choice(STATUSES), "entries": {}}
    field = "stdout" if "run" in record else "text"
    text = str(changed.get(field, ""))
    kind = chance.randrange(6)
    if kind == 0:
        kept = {key: value for key, value in changed.items() if key in ("read", "run", "fetch", "method", "label")}
        return {**kept, "status": chance.choice(STATUSES), **({"stdout": ""} if "run" in record else {})}
    if kind == 1:
        changed[field] = text[: chance.randrange(len(text) + 1)]
    elif kind == 2:
        changed[field] = "".join(
            chance.choice('\0\ufffd{}[]":,0-9aZ \n\t%s') if chance.random() < 0.03 else letter for letter in text
        )
    elif kind == 3:
        changed[field] = chance.choice(["", "\n" * 50, "0" * 5000, "{" * 3000, "nan, [N/A], ERR!, -1\n" * 9, "\0" * 40])
    elif kind == 5:
        odd = chance.choice(ODD)
        changed[field] = re.sub(r"[0-9]+", lambda found: odd if chance.random() < 0.3 else found[0], text)
    else:
        lines = text.splitlines(keepends=True)
        chance.shuffle(lines)
        changed[field] = "".join(lines)
    return changed


WHOLE = records()
KEYS = set(facts(WHOLE))


@pytest.mark.parametrize("seed", range(40))
def test_damage_gives_the_same_keys_and_no_exception(seed: int) -> None:
    chance = random.Random(seed)
    share = chance.choice([0.02, 0.1, 0.4])
    changed = [
        damaged(record, chance) if name_of(record).startswith(OWN) and chance.random() < share else record
        for record in WHOLE
    ]
    found = facts(changed)
    assert set(found) == KEYS == {*gather.FACTS, "errors", "unread"}
    json.dumps(found)
    assert not any("a fault in the reader" in entry["problem"] for entry in found["errors"])
    if found["state"] == "ready":
        assert (found["api"]["health"] or {}).get("code") == 200 or found["api"]["models"]
    # What waits for a server reads the same facts.
    watch = watching.Watch()
    assert watch.look(found, 0.0).state in ("waiting", "ready", "failed", "stalled")
    watching.judge_answers(found, "glm-5", 1)
    assert stall.find_cause(found)["advice"]


def test_nothing_of_a_server_that_nothing_shows() -> None:
    systemctl = {"run": list(units.LIST_COMMAND), "status": "absent"}
    found = facts([{"list": "/proc", "status": "ok", "entries": {}}, systemctl])
    assert (found["state"], found["process"], found["generation"]["ran"]) == ("absent", None, False)


@pytest.mark.parametrize("status", ["denied", "failed", "timeout", "not_captured"])
def test_processes_that_cannot_be_listed_are_not_absent(status: str) -> None:
    changed = [record for record in WHOLE if record.get("list") != "/proc"]
    if status != "not_captured":
        changed.append({"list": "/proc", "status": status})
    found = facts(changed)
    assert (found["state"], found["process"], found["ranks"]) == (None, None, None)


def test_a_fault_of_ours_leaves_every_fact_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "_gather", lambda *_words: {}["state"])
    found = facts(WHOLE)
    assert set(found) == KEYS and found["state"] is found["log"] is None
    assert "KeyError" in found["errors"][0]["problem"]


def test_a_bundle_without_processes_holds_no_server() -> None:
    assert inference_server_facts.facts(bundle.BundleEvidence({}, []), {})["ansible_facts"]["inference_server"] is None
