"""What the documentation of several modules has in common."""

from __future__ import annotations


class ModuleDocFragment:
    """`gpu_host` of every module that changes nothing, `gpu_host.bundle` of those that read a recorded host too."""

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
