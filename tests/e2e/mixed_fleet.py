"""A fleet of live hosts on this machine, each with an nvidia-smi of its own: what a bad one may cost the others.

A host's interpreter is a wrapper that puts a directory in front of the search path, so the real modules run with the
real time limits.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# In place of nvidia-smi. A hanging one ignores what asks it to end, as a process in the driver does.
PROGRAMS = {
    "healthy": "#!/bin/sh\necho 'No devices were found'\nexit 6\n",
    "hanging": "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n",
    "endless": "#!/bin/sh\nexec cat /dev/zero\n",
    "garbage": "#!/bin/sh\nhead -c 200000 /dev/urandom\n",
}
BAD = ("hanging", "endless", "garbage", "unreachable")


def make_inventory(directory: Path, healthy: int, bad: tuple[str, ...] = BAD) -> dict[str, Any]:
    """An inventory of `healthy` healthy hosts (healthy1, ...) and the `bad` ones, which come first."""
    hosts: dict[str, Any] = {}
    for name in [*bad, *("healthy%d" % number for number in range(1, healthy + 1))]:
        if name == "unreachable":  # an address for documentation: packets to it get lost
            hosts[name] = {"ansible_host": "192.0.2.1", "ansible_ssh_common_args": "-o ConnectTimeout=10"}
            continue
        kind = name.rstrip("0123456789")
        program = directory / kind / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(PROGRAMS[kind])
        python = directory / kind / "python"
        python.write_text('#!/bin/sh\nPATH="%s:$PATH" exec %s "$@"\n' % (program.parent, sys.executable))
        for path in (program, python):
            path.chmod(0o755)
        hosts[name] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": str(python),
            "gpu_host_expected": {"gpus": {"count": 0}},
            "host_validation_server": "false",
        }
    return {"all": {"hosts": hosts}}
