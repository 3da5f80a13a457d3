#!/usr/bin/python
"""The inference_server_load module."""
from __future__ import annotations

DOCUMENTATION = r"""
module: inference_server_load
short_description: Put a load on an inference server and measure it, with the GPUs' power, utilisation and PCIe traffic
description:
  - Sends streamed completion requests with random prompts, so many at a time, from the host itself, and times every token.
  - As an action (which playbooks get) it runs O(cells) one after the other, shows each result, compares them with O(targets) and with the
    O(baseline) of the run before, and writes O(report) on the controller.
options:
  base:
    description: The address of the API, such as C(http://127.0.0.1:8000).
    type: str
    required: true
  model:
    description: The name of the model.
    type: str
    required: true
  api_key:
    description: The key of the API, if it wants one.
    type: str
  cells:
    description: "Loads: a list of C({concurrency, requests, prompt_tokens, output_tokens})."
    type: list
    elements: dict
    default: []
  targets:
    description: "What must be reached: C(single_stream_tokens_per_s), C(output_tokens_per_s), C(total_tokens_per_s)."
    type: dict
    default: {}
  baseline:
    description: The report of the run to compare with, on the controller. None yet is no fault.
    type: path
  report:
    description: Where the results go, on the controller.
    type: path
  concurrency:
    description: Requests at a time, of the one cell that the module itself runs.
    type: int
    default: 1
  requests:
    description: Requests in all.
    type: int
    default: 8
  prompt_tokens:
    description: Words of each prompt.
    type: int
    default: 512
  output_tokens:
    description: Tokens of each answer.
    type: int
    default: 256
  time_limit:
    description: Seconds after which a cell ends in any case; what has not ended counts as failed.
    type: int
    default: 600
author:
  - The gpu-host-validation authors
attributes:
  check_mode:
    support: none
    description: A load is a load. In check mode nothing is sent.
"""

EXAMPLES = r"""
- name: Single stream and 64 at once
  inference_server_load:
    base: http://127.0.0.1:8000
    model: glm-5
    cells:
      - {concurrency: 1, requests: 4, prompt_tokens: 512, output_tokens: 256}
      - {concurrency: 64, requests: 256, prompt_tokens: 512, output_tokens: 256}
    targets: {single_stream_tokens_per_s: 100, total_tokens_per_s: 1000}
"""

RETURN = r"""
cells:
  description: The figures of each load, with the samples of the GPUs.
  returned: always
  type: list
  elements: dict
findings:
  description: Targets that were missed, requests that failed, loads that are slower than the baseline.
  returned: always
  type: list
  elements: dict
"""

import contextlib
import subprocess
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_server import benchmark, load

ARGUMENT_SPEC = {
    "base": {"type": "str", "required": True},
    "model": {"type": "str", "required": True},
    "api_key": {"type": "str", "no_log": True},
    "concurrency": {"type": "int", "default": 1},
    "requests": {"type": "int", "default": 8},
    "prompt_tokens": {"type": "int", "default": 512},
    "output_tokens": {"type": "int", "default": 256},
    "time_limit": {"type": "int", "default": 600},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=False)
    params = module.params
    for name in ("concurrency", "requests", "prompt_tokens", "output_tokens", "time_limit"):
        if params[name] < 1:
            module.fail_json(msg="%s must be at least 1, it is %d" % (name, params[name]))
    with tempfile.TemporaryFile() as out:
        sampler = None
        with contextlib.suppress(OSError):  # no nvidia-smi: the load is measured all the same
            sampler = subprocess.Popen(benchmark.DMON_COMMAND, stdout=out, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        try:
            cell = load.Load(params["base"], params["model"], params["api_key"]).run(
                params["concurrency"], params["requests"], params["prompt_tokens"], params["output_tokens"], float(params["time_limit"])
            )
        finally:
            if sampler:
                sampler.kill()
                sampler.wait()
        out.seek(0)
        cell["gpus"] = benchmark.samples(out.read().decode("utf-8", "replace"))
    module.exit_json(changed=False, cell=cell)


if __name__ == "__main__":
    main()
