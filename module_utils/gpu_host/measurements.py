"""What other tools measured on this host, from their outputs among the evidence. Nothing is run for it.

A live host has none of them; they come with loose pieces, or stand in a bundle that was made of such pieces.
"""

from __future__ import annotations

from typing import Any

from .evidence.errors import Errors
from .evidence.interface import Evidence
from .measured import tools
from .measured.output import Output

# Computed once the other subjects are known (measured/pairs.py).
COMPUTED = (
    "pairs", "refused_pairs", "waived_peer_tests", "staged_pairs", "slower_with_peer_access", "slow_pairs",
    "impossible_pairs",
    "all_usable", "all_fast", "lowest_bandwidth_gb_s", "disagreements", "data_checked", "devices",
)  # fmt: skip


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """Facts ``measurements``.

    ``tools``: [{tool, source, complete}] ([] on a host of which no output was handed in). ``figures``: [{tool, kind,
    method, peer (peer access on, off, None: not said), unit, size_bytes, value, pairs}]: `kind` bandwidth | both_ways |
    latency | access_latency (of pairs, `pairs` by "SOURCE->TARGET") or from_host | to_host | collective | network (one
    `value`). ``wrong``: sentences of wrong data, ``failed``: of other faults (None where an output
    is cut off and shows none), ``waived``: tests that did not run.
    ``unread``: outputs that could not be read; with one, what no other output shows to be wrong is unknown (None).
    ``server``: results of a server's own benchmark [{engine, output_tokens_per_s, …}]. And those of measured/pairs.py:
    ``pairs``, ``refused_pairs``, …
    """
    found: dict[str, Any] = {
        "tools": [],
        "figures": [],
        "wrong": [],
        "failed": [],
        "waived": [],
        "server": [],
        "outputs": [],
        "unread": [],
    }
    for path in sorted(path for path in evidence.paths() if path.startswith(tools.DIRECTORY + "/")):
        name, _slash, source = path[len(tools.DIRECTORY) + 1 :].partition("/")
        reading = evidence.read(path)
        if not reading.ok or name not in tools.READERS:
            errors.unanswered(reading)
            found["unread"].append(source or name)
            continue
        output = tools.READERS[name](reading.text)
        found["tools"].append({"tool": name, "source": source, "complete": output.complete and not reading.truncated})
        found["outputs"].append(output)
        for key in ("wrong", "failed", "waived"):
            found[key] += ["%s: %s" % (name, sentence) for sentence in getattr(output, key)]
        found["server"] += [{"source": source, **result} for result in output.server]
        if not (
            output.figures
            or output.can_access
            or output.waived
            or output.wrong
            or output.failed
            or output.server
            or name == "dcgmi diag"
        ):
            errors.add(source, "holds no figure of %s that can be read" % name)
    cut = [tool["source"] for tool in found["tools"] if not tool["complete"]]
    for source in cut:
        errors.add(source, "is cut off: what came after its last line is not known")
    found.update({key: found[key] or (None if cut else []) for key in ("wrong", "failed")})
    found.update(dict.fromkeys(COMPUTED))
    found["pairs"] = {}
    return found


def take_outputs(facts: dict[str, Any]) -> list[tuple[str, Output]]:
    """(tool, what it said), taken out of the facts: they are no facts yet, as devices have only the tool's numbers."""
    outputs = facts.pop("outputs", [])
    return list(zip([str(tool["tool"]) for tool in facts["tools"]], outputs))


def forget_unread(facts: dict[str, Any]) -> None:
    """Where an output could not be read, nothing is concluded from what the others do not show."""
    if not facts["unread"]:
        return
    for key, value in facts.items():
        if key != "unread" and (value in ([], {}, True) or (value is False and key == "data_checked")):
            facts[key] = None
