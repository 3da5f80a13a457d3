#!/usr/bin/python
"""Documentation of the run_checks action; the code is plugins/action/run_checks.py and runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_checks
short_description: Judge a host by the checks
description:
  - Evaluates every check of C(checks/*.yml) on the facts that M(host_facts) gathered before, on the controller, without
    a connection.
  - One broken check never hides another; what is unknown never passes.
  - Fails where a check of severity V(error) failed, is unknown or broke, where a waiver or a selection names what does
    not exist, and where no check ran.
options:
  checks_dir:
    description: The directory of the checks. The default is C(checks) of this project.
    type: path
  expected:
    description: What the inventory expects of this host, C(expected) in a check.
    type: dict
    default: {}
  tags:
    description: Run only the checks with one of these tags. An unknown tag fails the task.
    type: list
    elements: str
    default: []
  skip_tags:
    description: Leave out the checks with one of these tags. An unknown tag fails the task.
    type: list
    elements: str
    default: []
  only:
    description: Run only the checks with these ids. An unknown id fails the task.
    type: list
    elements: str
    default: []
  exclude:
    description: Leave out the checks with these ids. An unknown id fails the task.
    type: list
    elements: str
    default: []
  run_tags:
    description:
      - The tags of the run (C(ansible_run_tags)). Those that are tags of checks select checks; others are none of ours.
    type: list
    elements: str
    default: []
  run_skip_tags:
    description: The skipped tags of the run (C(ansible_skip_tags)), in the same way.
    type: list
    elements: str
    default: []
  baseline:
    description:
      - What to do with the known good state of this host, a file on the controller.
      - V(auto) compares with it where there is one, V(diff) also says where there is none, V(off) does not compare.
      - V(save) compares, and then keeps the host as it is now if it is ready, V(force) in any case. The one before is
        kept beside it.
    type: str
    choices: [auto, save, force, diff, "off"]
    default: "off"
  baseline_dir:
    description: The directory of the baselines. The default is C(baselines/hosts) of this project.
    type: path
  metrics_directory:
    description:
      - A directory on the host, where the result is left as metrics for the textfile collector of node_exporter, in
        the file C(gpu_host_validation.prom). It has to be there. Without it nothing is written.
      - A recorded host, and a run that judged only a part of the host, write nothing.
      - Where the file cannot be written, the task fails and says so.
    type: str
    default: ""
  waivers:
    description:
      - "Findings that are accepted for a while: a list of C({check, reason, expires})."
      - O(waivers[].expires) is the last day (YYYY-MM-DD) on which it holds.
    type: raw
    default: []
extends_documentation_fragment:
  - gpu_host
"""

EXAMPLES = r"""
- name: Gather facts
  gpu_facts:

- name: Check the part that P2P needs
  run_checks:
    expected:
      gpus:
        count: 8
    tags: [p2p]
    waivers:
      - check: acs_redirect_off
        reason: Firmware update is planned with the vendor, ticket 4711
        expires: 2027-01-31
"""

RETURN = r"""
checks:
  description:
    - One result for each selected check, in the order of the files.
    - RV(checks[].status) is V(pass), V(fail), V(unknown), V(skip), V(waived) or V(error).
    - RV(checks[].caused_by) names the nearest failing checks that explain this one.
    - Of a check that passed or was skipped, there are the id, severity, tags, status and reason only.
  returned: always
  type: list
  elements: dict
checks_dir:
  description: The directory of the checks.
  returned: always
  type: str
part:
  description: Why this was only a part of the host.
  returned: where checks were chosen, or subjects were not gathered
  type: str
report_drift:
  description: What changed since the baseline, as JSON (module_utils/gpu_compare/drift.py).
  returned: where there is a baseline, or one was asked for
  type: str
report_facts:
  description: The facts that the report keeps, as JSON.
  returned: always
  type: str
report_features:
  description: What is compared with other hosts of the same kind, as JSON (module_utils/gpu_compare/features.py).
  returned: always
  type: str
problems:
  description: What is wrong with the selection or the waivers, and metrics that could not be written to the host.
  returned: always
  type: list
  elements: str
summary:
  description:
    - Counts of every status, RV(summary.ready), and the ids in RV(summary.not_ready_because) and RV(summary.warnings).
  returned: always
  type: dict
"""
