#!/usr/bin/env python3
"""Shows every record of a bundle as text, so that whoever sends it has seen it: `make show F=bundles/gpu1.jsonl.gz`.

What somebody handed in (a bug report, a folder, a pasted text) is shown as the records that are taken from it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.module_utils.gpu_host.evidence import describe_bundle
from ansible.module_utils.gpu_host.loose import case


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("Name one bundle: make show F=bundles/HOST.jsonl.gz", file=sys.stderr)
        return 2
    try:
        for line in describe_bundle.show_bundle(case.load_case(arguments[0])):
            print(line)
        sys.stdout.flush()
    except ValueError as error:  # BundleError says what is wrong with the file
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head`, or a pager that was left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
