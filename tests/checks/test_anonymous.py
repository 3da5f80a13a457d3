"""A bundle without identities gets the verdict of the host that it is of, and holds none of them."""

from __future__ import annotations

import json
import re
from typing import Any

import harness
import loose_cases
import pytest
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.anonymise import anonymise_bundle
from ansible.module_utils.gpu_host.loose import case

SHOWN = ("status", "caused_by", "root_cause", "severity")
RECORDED = sorted(path.name.split(".")[0] for path in harness.HOSTS.glob("*.jsonl.gz"))
# As people name machines, guests and themselves; put in the place of the names of the recordings, and beside them.
TOLD = (
    "Nov 30 11:00:00 gpuserver kernel: NVRM: loading 52:54:00:ab:cd:ef 02-42-ac-11-00-02 10.20.30.40 "
    "2a01:4f8:1:2:3:4:5:6/64 "
    "uuid 499aea4a-dfe1-7299-021c-e6759854fa78 id 499aea4adfe17299021ce6759854fa70 S/N: ABC1234567 alice@corp.internal "
    "/home/alice/models/x port_guid 0x0c42a10300aabb01 root=PARTUUID=9a8b7c6d-02 gpuserver.corp.internal\n"
)
HIDDEN = (
    "gpuserver|52:54:00:ab|02-42-ac|10\\.20\\.30\\.40|2a01:4f8|499aea4a|ABC1234567|alice|corp\\.internal"
    "|0c42a10300aabb01|9a8b7c6d"
)


def anonymous(evidence: bundle.BundleEvidence) -> bundle.BundleEvidence:
    text = anonymise_bundle(bundle.dump_bundle(evidence.manifest, evidence.records()))
    found = bundle.parse_bundle(text.encode())
    return case.add_pieces(found) if found.manifest.get("loose") else found


def told(evidence: bundle.BundleEvidence) -> bundle.BundleEvidence:
    """The host with all that identifies somebody in its kernel log, once as text and once with a byte that is none."""
    changed = evidence.copy()
    for argv in (["dmesg"], ["journalctl", "-k", "-b", "-o", "short-unix", "--no-pager", "-n", "100000"]):
        log = evidence.run(argv)
        if log.ok:
            changed.put(bundle.Outcome(tuple(argv), "ok", rc=log.rc, stdout=log.stdout + b"\xff\n" + TOLD.encode()))
    changed.put(bundle.Reading("/etc/modules-load.d/told.conf", "ok", b"# " + TOLD.encode()))
    changed.put(bundle.Reading("/home/alice/note", "ok", b"\xfe\n" + TOLD.encode()))
    return changed


def verdict(
    evidence: bundle.BundleEvidence, settings: dict[str, Any], hypervisor: dict[str, Any] | None
) -> dict[str, Any]:
    results = harness.judge(
        evidence, settings.get("expected", {}), settings.get("facts"), hypervisor, bool(settings.get("proxmox"))
    )
    return {name: {key: result.get(key) for key in SHOWN} for name, result in results.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*harness.BASES, *RECORDED}))
def test_the_verdict_is_the_same(name: str) -> None:
    settings = harness.BASES.get(name, {})
    place = settings.get("hypervisor")
    before, after = told(harness.base(name)), anonymous(told(harness.base(name)))
    host, anonymous_host = None, None
    if place:
        node = harness.base(place["recording"])
        host = {"facts": harness.facts_of_hypervisor(node), "vmid": place["vmid"]}
        anonymous_host = {"facts": harness.facts_of_hypervisor(anonymous(node)), "vmid": place["vmid"]}
    assert verdict(after, settings, anonymous_host) == verdict(before, settings, host)
    text = json.dumps(after.records()) + json.dumps(after.manifest)
    decoded = next(after.read(path).data or b"" for path in after.paths() if path.endswith("/note"))
    assert re.findall(HIDDEN, text) == [] and b"Nov 30" in decoded and re.findall(HIDDEN.encode(), decoded) == []


@pytest.mark.parametrize(
    "name", sorted(path.name for path in loose_cases.LOOSE.iterdir() if path.name != "verdicts.yml")
)
def test_what_was_handed_in_gets_the_same_verdict(name: str, tmp_path: Any) -> None:
    evidence = case.load_case(str(loose_cases.LOOSE / name))
    text = anonymise_bundle(bundle.dump_bundle(evidence.manifest, evidence.records()))
    path = tmp_path / "anonymous.jsonl"
    path.write_text(text)
    statuses = [
        {check: result["status"] for check, result in loose_cases.judge(judged).items()}
        for judged in (loose_cases.LOOSE / name, path)
    ]
    assert statuses[0] == statuses[1]
