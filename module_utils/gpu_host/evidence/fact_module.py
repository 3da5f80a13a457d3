"""What every facts module does around its readers: keep the evidence where a bundle is asked for, and answer Ansible."""

from __future__ import annotations

import os
import socket
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule

from . import bundle as bundles
from .interface import Evidence
from .live import LiveEvidence

Params = dict[str, Any]
# Of every facts module, beside its own arguments.
ARGUMENTS: dict[str, dict[str, Any]] = {"bundle": {"type": "path"}, "capture": {"type": "bool", "default": False}}


def result(
    tool: str, key: str, evidence: Evidence, params: Params, gather: Callable[[Evidence], Any]
) -> dict[str, Any]:
    """The module's result: what `gather` reads from `evidence` under `key`, and with ``capture`` the bundle that `tool`
    wrote.

    `gather` is given a recorder in the place of the evidence; nothing that it reads otherwise is in the bundle.
    """
    recorder = bundles.RecordingEvidence(evidence) if params.get("capture") else None
    found: dict[str, Any] = {"changed": False, "ansible_facts": {key: gather(recorder or evidence)}}
    if recorder:
        manifest: dict[str, Any] = {
            "host": socket.gethostname(),
            "captured_at": evidence.now(),
            "uid": os.getuid(),
            "tool": tool,
        }
        if recorder.source_manifest.get("loose"):  # a capture of loose pieces is no more than they are
            manifest.update({name: recorder.source_manifest.get(name) for name in ("host", "loose")})
        found["bundle_text"] = bundles.dump(manifest, recorder.records)
    return found


def main(
    arguments: dict[str, dict[str, Any]],
    facts: Callable[[Evidence, Params], dict[str, Any]],
    live: Callable[[Params], Evidence] = lambda _params: LiveEvidence(),
) -> None:
    """Run as a module: `facts` of the bundle if one is named, else of the `live` host. A ValueError is the user's to
    mend."""
    module = AnsibleModule(argument_spec=arguments, supports_check_mode=True)
    try:
        evidence = bundles.load(module.params["bundle"]) if module.params["bundle"] else live(module.params)
        module.exit_json(**facts(evidence, module.params))
    except ValueError as error:
        module.fail_json(msg=str(error))
