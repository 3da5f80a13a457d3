#!/usr/bin/python
"""The write_metrics module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: write_metrics
short_description: Write a file of metrics where node_exporter reads it
description:
  - Writes the file whole or not at all, readable by everybody, through a temporary file beside it whose name the
    textfile collector of node_exporter does not read.
  - M(run_checks) runs it where O(run_checks#module:metrics_directory) is set.
options:
  path:
    description: The file. Its directory has to be there, because it belongs to node_exporter.
    type: path
    required: true
  content:
    description: The metrics, in the text format of Prometheus.
    type: str
    required: true
attributes:
  check_mode:
    support: full
    description: Nothing is written.
extends_documentation_fragment:
  - gpu_host.authors
"""

EXAMPLES = r"""
- name: Say when this host was installed
  write_metrics:
    path: /var/lib/prometheus/node-exporter/installed.prom
    content: |
      # HELP installed_timestamp_seconds Unix time at which the host was installed.
      # TYPE installed_timestamp_seconds gauge
      installed_timestamp_seconds 1796076060
"""

RETURN = r"""
path:
  description: The file.
  returned: success
  type: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_report import files


def find_problem(directory: str) -> str:
    """Why nothing can be written into `directory`; "" where it can, as far as one can tell without trying."""
    if not os.path.isdir(directory):
        return "the directory is not there; the textfile collector of node_exporter reads one that exists"
    if not os.access(directory, os.W_OK | os.X_OK):
        return "this user may not write there (run with --become, or give the directory to its user)"
    return ""


def main() -> None:
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "content": {"type": "str", "required": True}},
        supports_check_mode=True,
    )
    path, data = os.path.abspath(module.params["path"]), module.params["content"].encode("utf-8", "replace")
    problem = find_problem(os.path.dirname(path))
    if not problem and not module.check_mode:
        try:
            files.write_file(path, data)
        except OSError as error:
            problem = error.strerror or str(error)
    if problem:
        module.fail_json(msg="%s cannot be written: %s" % (path, problem))
    module.exit_json(changed=True, path=path)


if __name__ == "__main__":
    main()
