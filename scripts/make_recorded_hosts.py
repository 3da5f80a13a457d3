#!/usr/bin/env python3
"""Write the recorded hosts of the tests and the example fleet: tests/fixtures/hosts/NAME.jsonl.gz.

Each host is a model (scripts/recorded_hosts/); the real readers gather its facts through a recorder, and what they
asked for becomes the bundle. So after a reader asks for something new, run this again. h200-x1, h200-x2 and those
with an engine on them are not among them: they are recordings of real machines.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOSTS = ROOT / "tests" / "fixtures" / "hosts"
sys.path.insert(0, str(ROOT / "scripts"))

import ansible.module_utils

if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.gather import gather
from ansible.module_utils.gpu_host.proxmox import gather_host
from ansible.module_utils.gpu_server.gather import gather as gather_server
from recorded_hosts.hosts import all_hosts  # type: ignore[import-not-found]
from recorded_hosts.tree import TAKEN_AT, HostModel  # type: ignore[import-not-found]


def record(model: HostModel) -> str:
    """The bundle's text: what the readers ask for, and what else the model holds.

    So fallbacks find their answer too.
    """
    recorder = bundle.RecordingEvidence(model)
    gather(recorder)
    if model.list("/etc/pve").ok:
        gather_host(recorder)
    if model.serves:
        gather_server(recorder, {}, Errors("server"))
    for path in model.all_paths():
        recorder.read(path)
    for argv in model.all_commands():
        recorder.run(argv)
    records = sorted(recorder.records, key=lambda item: [str(part) for part in next(iter(item.items()))])
    manifest = {
        "host": model.name,
        "captured_at": TAKEN_AT,
        "uid": model.uid,
        "note": model.note,
        "reconstructed": True,
    }
    manifest["asks"] = list(bundle.ASKS)
    manifest["tool"] = "scripts/make_recorded_hosts.py"
    return bundle.dump_bundle(manifest, records)


def render() -> dict[str, str]:
    """Every host's bundle text, by name; the same on every run."""
    return {name: record(make()) for name, make in all_hosts().items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is out of date")
    arguments = parser.parse_args()
    stale = []
    for name, text in render().items():
        path = HOSTS / (name + ".jsonl.gz")
        # The text decides, not the compressed bytes: those differ from one zlib to another.
        old = gzip.decompress(path.read_bytes()).decode() if path.exists() else None
        if old != text:
            stale.append(name)
            if not arguments.check:
                temporary = path.with_suffix(".tmp")
                temporary.write_bytes(bundle.compress_bundle(text))
                os.replace(temporary, path)
    print("%s: %s" % ("out of date" if arguments.check else "written", ", ".join(stale) or "nothing, all are current"))
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
