"""What one file of the history holds: a summary of a run, and the whole report of it.

The file is two gzip members one behind the other, so that `zcat` shows both and the pages need to read only the first:
one line of JSON, ``{schema, run, ready, totals, checks: [[id, title]], hosts, report: {bytes, crc32}}``, and then
report.json as it was written. Of each host: ``{state, message, unreachable, recorded, statuses, overview, figures}``,
`statuses` one letter per check in the order of `checks` ("-": it did not run), `overview` what the machine is, in
words, `figures` its measured values (figures.py), `recorded` that the host was read from a bundle.
"""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

from .. import collector, tables
from .figures import measure_host

SCHEMA = 1
LARGEST = 64 * 1024 * 1024  # bytes of a summary; one of 500 hosts takes 1 MiB
_LONGEST = 300  # characters of one text
LETTERS = {"pass": "p", "fail": "f", "error": "e", "unknown": "u", "waived": "w", "skip": "s"}
NOT_RUN = "-"
STATES = (collector.READY, collector.NOT_READY, collector.NOT_VALIDATED)
_IN_OVERVIEW = ("Placement", "Machine", "CPU", "GPUs", "Driver", "Chipset", "IOMMU", "P2P")


class RecordError(ValueError):
    """What is read is no file of the history, or not one of this version; the message says why."""


def make_summary(report: dict[str, Any]) -> dict[str, Any]:
    """The summary of a report (collector.py)."""
    checks = list(report["checks"])
    return {
        "schema": SCHEMA,
        "run": report["run"],
        "ready": report["ready"],
        "totals": report["totals"]["hosts"],
        "checks": [[check, report["checks"][check]["title"]] for check in checks],
        "hosts": {name: _summarise_host(host, checks) for name, host in report["hosts"].items()},
    }


def _summarise_host(host: dict[str, Any], checks: list[str]) -> dict[str, Any]:
    facts = host["facts"]
    statuses = {result["id"]: LETTERS[result["status"]] for result in host["results"]}
    return {
        "state": host["state"],
        "message": host["message"][:_LONGEST],
        "unreachable": host["unreachable"],
        "recorded": bool((facts.get("evidence") or {}).get("recorded")),
        "statuses": "".join(statuses.get(check, NOT_RUN) for check in checks) if statuses else "",
        "overview": {
            name: value[:_LONGEST] for name, value in tables.list_overview(facts) if name in _IN_OVERVIEW
        },
        "figures": measure_host(facts),
    }  # fmt: skip


def pack_report(path: str) -> bytes:
    """report.json, compressed piece by piece: a fleet's is large. OSError where it cannot be read."""
    packing = zlib.compressobj(6, wbits=31)
    packed = []
    with open(path, "rb") as handle:
        while piece := handle.read(1 << 20):
            packed.append(packing.compress(piece))
    return b"".join([*packed, packing.flush()])


def encode_record(summary: dict[str, Any], packed: bytes) -> bytes:
    """The bytes of a file. `packed`: pack_report."""
    about = {**summary, "report": {"bytes": len(packed), "crc32": zlib.crc32(packed)}}
    line = json.dumps(about, default=str) + "\n"  # in ASCII: a name that is no Unicode comes back as it was
    return gzip.compress(line.encode("ascii"), 6, mtime=0) + packed


def decode_summary(data: bytes) -> dict[str, Any]:
    """The summary in a file. RecordError says what is wrong with the file, with the report behind it too."""
    unpacking = zlib.decompressobj(wbits=31)
    try:
        text = unpacking.decompress(data, LARGEST)
    except zlib.error as error:
        raise RecordError("it is damaged (%s)" % error) from None
    if not unpacking.eof:
        raise RecordError("it is larger than %d MiB" % (LARGEST >> 20) if len(text) >= LARGEST else "it is cut off")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise RecordError("its first part is no JSON") from None
    if not isinstance(found, dict) or not isinstance(found.get("schema"), int):
        raise RecordError("it is no file of the history")
    if found["schema"] != SCHEMA:
        other = "a newer" if found["schema"] > SCHEMA else "an older"
        raise RecordError("%s version of this project wrote it (schema %d)" % (other, found["schema"]))
    rest = unpacking.unused_data
    if found.get("report") != {"bytes": len(rest), "crc32": zlib.crc32(rest)}:
        raise RecordError("the report in it is damaged or cut off")
    _check_summary(found)
    return found


def _check_summary(found: dict[str, Any]) -> None:
    """RecordError where something is not of its form: a file that somebody edited is left out, not half believed."""
    run, totals, checks, hosts = (found.get(name) for name in ("run", "totals", "checks", "hosts"))
    if not (
        isinstance(run, dict)
        and isinstance(run.get("started_at"), str)
        and _is_mapping(totals, int)
        and isinstance(checks, list)
        and all(isinstance(one, list) and len(one) == 2 and _are(one, str) for one in checks)
        and isinstance(hosts, dict)
    ):
        raise RecordError("its form is not that of a run")
    for name, host in hosts.items():
        if not _is_host(host, len(checks)):
            raise RecordError("what it says of %.80s is not of the right form" % name)


def _is_host(host: Any, checks: int) -> bool:
    return (
        isinstance(host, dict)
        and host.get("state") in STATES
        and _are([host.get(name) for name in ("message", "statuses")], str)
        and _are([host.get(name) for name in ("unreachable", "recorded")], bool)
        and len(host["statuses"]) in (0, checks)
        and set(host["statuses"]) <= {*LETTERS.values(), NOT_RUN}
        and _is_mapping(host.get("overview"), str)
        and _is_mapping(host.get("figures"), (int, float))
    )


def _is_mapping(value: Any, kind: Any) -> bool:
    return isinstance(value, dict) and _are(value.values(), kind)


def _are(values: Any, kind: Any) -> bool:
    return all(isinstance(value, kind) for value in values)
