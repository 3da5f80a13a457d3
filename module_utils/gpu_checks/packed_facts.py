"""The facts of a host as one text, while validate.yml has nobody else who reads them.

Ansible copies the facts of a host, value by value, for every task of the host, every callback and every look at
`hostvars`: of eight GPUs that is some ten thousand values, and was a third of the controller's work and most of its
memory for a host. A text is one value. `ansible_facts` keeps its keys, each with the text of its facts in JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from ansible import constants, context

from . import installation

KEYS = ("gpu_host", "p2p_probe", "proxmox", "inference_server")
_PLAYBOOKS = tuple(str(installation.ROOT / part / "validate.yml") for part in ("", "playbooks"))


def has_other_readers() -> bool:
    """Whether this run may hold plays of somebody else, or keeps facts for other runs."""
    playbooks = tuple(context.CLIARGS.get("args") or ())
    ours = len(playbooks) == 1 and os.path.realpath(str(playbooks[0])) in _PLAYBOOKS
    return not ours or constants.config.get_config_value("CACHE_PLUGIN") != "memory"


def pack_result(result: dict[str, Any]) -> dict[str, Any]:
    """The result of a task that gathered facts, with those as texts where nobody else reads them."""
    facts = result.get("ansible_facts")
    if not isinstance(facts, dict) or has_other_readers():
        return result
    packed = {key: json.dumps(facts[key]) for key in KEYS if isinstance(facts.get(key), dict)}
    return {**result, "ansible_facts": {**facts, **packed}}


def unpack_facts(ansible_facts: Mapping[str, Any] | None) -> dict[str, Any]:
    """`ansible_facts` with every fact as it was gathered."""
    facts = dict(ansible_facts or {})
    return {**facts, **{key: json.loads(facts[key]) for key in KEYS if isinstance(facts.get(key), str)}}
