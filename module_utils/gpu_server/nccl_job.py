"""What NCCL says of the job that the server is: its RAS service, asked twice where a rank is behind or silent.

A collective that hangs shows here as a rank that has launched fewer operations than the others, or that does not answer
at all, and as nothing else in the server's log (gpu_host/nvidia/nccl_ras.py has the exchange).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..gpu_host.evidence.bundle import was_asked
from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import ABSENT, NOT_CAPTURED, OK, Evidence, Outcome
from ..gpu_host.evidence.live import LiveEvidence
from ..gpu_host.linux import versions
from ..gpu_host.nvidia import nccl_ras

COMMAND = "nccl_ras_status"  # with the address, and "again" the second time; a bundle holds the answers under this name
AGAIN_SECONDS = 1.0  # collectives of a server that works follow one another in milliseconds
SECONDS = nccl_ras.LIMIT_S + 2
SINCE = "2.24"


class ServerEvidence(LiveEvidence):
    """The live host, on which COMMAND asks NCCL's RAS. What it answers is the output of that command."""

    def run(self, argv: Sequence[str], timeout: float = 30.0) -> Outcome:
        words = tuple(argv)
        if words[:1] != (COMMAND,):
            return super().run(argv, timeout)
        if words[2:] == ("again",):
            time.sleep(AGAIN_SECONDS)
        began = time.monotonic()
        host, port = nccl_ras.read_address(words[1])
        answer = nccl_ras.ask_status(host, port)
        status = {"ok": OK, "absent": ABSENT}.get(answer["status"], "failed")
        return Outcome(
            words,
            status,
            rc=0 if status == OK else None,
            stdout=(answer["text"] or "").encode("utf-8"),
            seconds=round(time.monotonic() - began, 3),
            reason=answer["reason"] or "",
        )


def read_nccl_job(
    evidence: Evidence, environment: dict[str, str] | None, version: str | None, ranks: int | None, errors: Errors
) -> dict[str, Any]:
    """``{asked, answered, reason, address, nccl, communicators, ranks, late, missing, errors, stuck}``.

    `late`, `missing` and `errors` as `nccl_ras.summarise_status` gives them; `stuck`: what of `late` and `missing` was
    the same a second later, None where that is not known.
    """
    names = ("reason", "address", "nccl", "communicators", "ranks", "late", "missing", "errors", "stuck")
    result: dict[str, Any] = {"asked": False, "answered": False, **dict.fromkeys(names)}
    if ranks == 1:
        return {**result, "reason": "the server has one rank"}
    settings = environment or {}
    if settings.get("NCCL_RAS_ENABLE") == "0":
        return {**result, "reason": "NCCL_RAS_ENABLE=0 switches it off"}
    if version and versions.is_at_least(version, SINCE) is False:
        return {**result, "reason": "NCCL %s has none (it came with %s)" % (version, SINCE)}
    address = nccl_ras.format_address(*nccl_ras.read_address(settings.get(nccl_ras.VARIABLE)))
    result["address"] = address
    answer = evidence.run((COMMAND, address), SECONDS)
    if answer.status == NOT_CAPTURED and not was_asked(evidence, COMMAND):
        return {**result, "reason": "not asked when this bundle was made"}
    result["asked"] = True
    if answer.status == ABSENT:
        return {**result, "reason": "nobody listens on %s" % address}
    found = nccl_ras.summarise_status({"status": "ok", "text": answer.text} if answer.ok else None)
    if not found["answered"]:
        reason = answer.reason or found["reason"] or answer.status
        errors.add("%s %s" % (COMMAND, address), reason)
        return {**result, "answered": None, "reason": reason}
    result.update({name: found[name] for name in ("answered", *names) if name in found})
    for line in nccl_ras.find_odd_lines(answer.text)[:3]:
        errors.odd("%s %s" % (COMMAND, address), "is no line of the table of communicators", line)
    odd = [*found["late"], *found["missing"]]
    result["stuck"] = odd
    if odd:
        again = evidence.run((COMMAND, address, "again"), SECONDS)
        later = nccl_ras.summarise_status({"status": "ok", "text": again.text} if again.ok else None)
        still = {*(later["late"] or ()), *(later["missing"] or ())} if later["answered"] else None
        result["stuck"] = None if still is None else [line for line in odd if line in still]
    return result
