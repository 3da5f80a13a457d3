"""What every facts module does around its readers: record the evidence where asked, and answer Ansible."""

from __future__ import annotations

import os
import socket
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule

from . import bundle as bundles
from . import caller
from .interface import Evidence
from .noting import NotingEvidence

Params = dict[str, Any]
# Of every facts module, beside its own arguments.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "bundle": {"type": "path"},
    "capture": {"type": "bool", "default": False},
    "unanswered": {"type": "dict", "default": {}},
}


def build_result(
    tool: str, key: str, evidence: Evidence, params: Params, gather: Callable[[Evidence], Any]
) -> dict[str, Any]:
    """The module's result: what `gather` reads from `evidence`, under `key`.

    With ``capture`` it holds the bundle that `tool` wrote, too.

    `gather` is given a recorder in the place of the evidence; nothing that it reads otherwise is in the bundle.
    """
    recorder = bundles.RecordingEvidence(evidence) if params.get("capture") else None
    noting = NotingEvidence(recorder or evidence, key)
    facts = gather(noting)
    if isinstance(facts, dict) and "evidence" not in facts:
        facts["unread"] = noting.unread
    found: dict[str, Any] = {"changed": False, "ansible_facts": {key: facts}}
    if recorder:
        manifest = {"host": socket.gethostname(), "captured_at": evidence.now(), "uid": os.getuid(), "tool": tool}
        manifest["asks"] = list(bundles.ASKS)
        # Of a recorded host the bundle says when, where and by whom it was captured; here is only the controller.
        manifest = getattr(evidence, "manifest", manifest)
        found["bundle_text"] = bundles.dump_bundle(manifest, recorder.records)
    return found


def gather_from(
    evidence: Evidence, facts: Callable[[Evidence, Params], dict[str, Any]], params: Params
) -> dict[str, Any]:
    """`facts` of `evidence`; nothing that was started for them runs on, also where this process is interrupted."""
    try:
        return facts(evidence, params)
    except KeyboardInterrupt:
        caller.end_children()
        raise
    finally:
        evidence.abandon()


def run_module(
    arguments: dict[str, dict[str, Any]],
    facts: Callable[[Evidence, Params], dict[str, Any]],
    live: Callable[[Params], Evidence],
) -> None:
    """Run as a module: `facts` of the bundle if one is named, else of the `live` host.

    A ValueError is the user's to mend.
    """
    module = AnsibleModule(argument_spec=arguments, supports_check_mode=True)
    caller.end_with_caller()
    try:
        evidence = bundles.load_bundle(module.params["bundle"]) if module.params["bundle"] else live(module.params)
        module.exit_json(**gather_from(evidence, facts, module.params))
    except ValueError as error:
        module.fail_json(msg=str(error))
