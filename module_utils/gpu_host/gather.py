"""All facts of one host: runs the chosen readers, isolates their failures, joins what needs two of them."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

from . import (
    cross_facts,
    device_nodes,
    driver,
    gpus,
    iommu,
    kernel,
    kernel_log,
    measurements,
    modules,
    p2p,
    pci,
    system,
    topology,
    virtualization,
)
from .evidence.errors import Errors
from .evidence.interface import Evidence
from .evidence.noting import NotingEvidence
from .evidence.sides import find_pieces
from .loose import excerpts
from .measured import pairs as measured_pairs
from .probe.worker_run import was_to_run

SCHEMA = 1
# Subject -> its reader, named in an import statement because that is how Ansible finds what it has to pack. A reader
# has gather(evidence, errors) -> dict with the same keys always, None for unknown; it may have COMMANDS, a list of
# (argv, time limit in seconds) that are started early so that they overlap.
SUBJECTS: dict[str, Any] = {
    "gpus": gpus,
    "p2p": p2p,
    "topology": topology,
    "driver": driver,
    "modules": modules,
    "kernel": kernel,
    "pci": pci,
    "iommu": iommu,
    "virtualization": virtualization,
    "device_nodes": device_nodes,
    "kernel_log": kernel_log,
    "system": system,
    "measurements": measurements,
}


def choose_subjects(subset: Sequence[str]) -> list[str]:
    """Subjects for a `gather_subset`, in the order of SUBJECTS.

    Such as ['all'], ['gpus', 'p2p'] or ['all', '!kernel_log'].

    ValueError names an unknown subject and the known ones.
    """
    chosen: set[str] = set()
    named = [name for name in subset if not name.startswith("!")]
    for name in subset:
        bare = name.lstrip("!")
        if bare != "all" and bare not in SUBJECTS:
            raise ValueError("unknown subject %r in gather_subset; known are: all, %s" % (bare, ", ".join(SUBJECTS)))
    for name in named or ["all"]:
        chosen |= set(SUBJECTS) if name == "all" else {name}
    chosen -= {name[1:] for name in subset if name.startswith("!")}
    return [name for name in SUBJECTS if name in chosen]


def gather(evidence: Evidence, subset: Sequence[str] = ("all",)) -> dict[str, Any]:
    """Facts of one host as one dictionary.

    A key for each subject (None if not gathered), `joined`, `errors`, `evidence`. ``evidence``:
    {schema, recorded, reconstructed, probe_recorded, taken_at (seconds since the epoch), subjects (those that were
    gathered), unread (what a reader asked for in vain), unanswered (program -> why it is not asked again), seconds,
    probe_not_run (why, where it did not run), loose (of pieces that people handed in: what was recognised, what was
    not, what would decide; None of a capture)}.
    """
    began = time.monotonic()
    facts: dict[str, Any] = dict.fromkeys(SUBJECTS)
    entries: list[dict[str, Any]] = []
    readers = {name: SUBJECTS[name] for name in choose_subjects(subset)}
    for reader in readers.values():
        for argv, limit in getattr(reader, "COMMANDS", ()):
            evidence.start(argv, limit)
    unread: list[dict[str, Any]] = []
    for name, reader in readers.items():
        noting = NotingEvidence(evidence, name)
        facts[name] = _isolated(name, reader.gather, entries, noting)
        unread += noting.unread
    evidence.abandon()
    excerpts.narrow_facts(facts, find_pieces(evidence), entries)
    if facts.get("measurements") is not None:
        _isolated("measurements", _measured, entries, facts)
    facts["joined"] = _isolated(
        "joined", cross_facts.join_facts, entries, facts
    )  # after the subjects: it reads their facts
    manifest = getattr(evidence, "manifest", None)
    facts["evidence"] = {
        "schema": SCHEMA,
        "recorded": manifest is not None,
        "reconstructed": bool(manifest and manifest.get("reconstructed")),
        "probe_recorded": manifest is not None and was_to_run(evidence),
        "loose": find_pieces(evidence) or None,
        "taken_at": evidence.now(),
        "subjects": list(readers),
        # What a reader asked for in vain: the reason why a fact is unknown where it gave none in `errors`.
        "unread": unread,
        "unanswered": evidence.unanswered(),
        "seconds": round(time.monotonic() - began, 3),
    }
    facts["errors"] = entries
    return facts


def _measured(facts: dict[str, Any], errors: Errors) -> None:
    """By pair of GPUs, once it is known which GPU is which."""
    facts["measurements"] = copy.deepcopy(facts["measurements"])  # the reader's answer is not ours to change
    outputs = measurements.take_outputs(facts["measurements"])
    measured_pairs.complete_pairs(facts["measurements"], outputs, facts)
    measurements.forget_unread(facts["measurements"])
    for tool, problem in measured_pairs.list_undecided(facts["measurements"]):
        errors.add(tool, problem)


def _isolated(subject: str, reader: Any, entries: list[dict[str, Any]], source: Any) -> Any:
    errors = Errors(subject)
    try:
        result = reader(source, errors)
    except Exception as error:  # a fault of ours must not hide what the other readers found
        errors.add(
            "module_utils/gpu_host",
            "a fault in the reader of %s: %s: %s; please report it" % (subject, type(error).__name__, error),
        )
        result = None
    entries.extend(errors.entries)
    return result
