"""What the documentation of several modules has in common."""

from __future__ import annotations


class ModuleDocFragment:
    """`gpu_host` of every module that changes nothing, `gpu_host.bundle` of those that read a recorded host too,
    `gpu_host.judged` of those that are given the results of a host."""

    DOCUMENTATION = r"""
author:
  - The gpu-host-validation authors
attributes:
  check_mode:
    support: full
    description: Changes nothing, ever.
"""

    AUTHORS = r"""
author:
  - The gpu-host-validation authors
options: {}
"""

    # Of the actions that work on one check of a host's results.
    JUDGED = r"""
options:
  check:
    description: The id of the check.
    type: str
    required: true
  checks:
    description: The results of the host, as M(run_checks) returns them.
    type: list
    elements: dict
    required: true
"""

    BUNDLE = r"""
options:
  bundle:
    description:
      - A bundle on the controller to read instead of the host.
    type: path
  capture:
    description:
      - Return the evidence too, as the text of a bundle, in RV(bundle_text).
    type: bool
    default: false
  unanswered:
    description:
      - Programs that hung or ran out of time before in this run, with what happened then. They are not asked again.
    type: dict
    default: {}
"""
