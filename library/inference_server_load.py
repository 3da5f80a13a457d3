#!/usr/bin/python
"""The inference_server_load module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_server_load
short_description: Put a load on an inference server and measure it, with the GPUs' power, utilisation and PCIe traffic
description:
  - Runs a load generator on the host itself, in front of the server, and samples its GPUs meanwhile. O(generator) says
    which one; a load runs detached, and how many requests are done is shown while it does.
  - As an action (which playbooks get) it runs O(cells) one after the other, shows each result, compares them with
    O(targets) and with the O(baseline) of the run before, and writes O(report) on the controller.
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
  generator:
    description:
      - What makes the load. V(sglang) is C(python -m sglang.benchmark.serving) (C(sglang.bench_serving) up to 0.5.12),
        V(vllm) is C(vllm bench serve), V(guidellm) is C(guidellm run) of guidellm 0.7 and newer, V(builtin) is a small
        one that needs nothing.
      - V(auto) takes the engine's own where the server's Python has it, else guidellm where it is on the PATH of the
        host or in O(generator_python), else V(builtin); the report says which one it was, and why not another. A
        baseline of another one is not compared.
      - Every option is looked up in the generator's own C(--help) first.
      - An engine's own generator has the name of the engine (C(module_utils/gpu_server/engines/)).
    type: str
    default: auto
  generator_python:
    description:
      - The Python on the host that has the generator, or the C(guidellm) program. Without it the Python of the server,
        as the server's user, and C(guidellm) on the PATH.
    type: path
  server:
    description:
      - What M(inference_server_facts) found, C(ansible_facts.inference_server). Its engine, its Python, its tokenizer
        and its caches are used.
    type: dict
    default: {}
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
  time_limit:
    description:
      - Seconds after which a load ends in any case, the start of the generator counted. With V(builtin) the requests
        that have not ended count as failed; with another generator the load has no figures then, and the ones after it
        are not run.
    type: int
    default: 600
  step:
    description: Of the module itself, which the action calls twice. Not for playbooks.
    type: str
    choices: [find, run]
    default: find
  how:
    description: Of the module itself, RV(generator) of the first call. Not for playbooks.
    type: dict
    default: {}
attributes:
  check_mode:
    support: none
    description: A load is a load. In check mode nothing is sent.
extends_documentation_fragment:
  - gpu_host.authors
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
generator:
  description: What measured, C({name, version, start, passed_over}); C(passed_over) is C([{name, why}]) of those that would have been better.
  returned: always
  type: dict
cells:
  description: The figures of each load, with the samples of the GPUs and the command of the generator.
  returned: always
  type: list
  elements: dict
findings:
  description: Targets that were missed, requests that failed, loads that are slower than the baseline.
  returned: always
  type: list
  elements: dict
"""

import os
import shutil
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_server.load import generator_find, generator_run, generators

ARGUMENT_SPEC = {
    **generators.ARGUMENTS,
    "step": {"type": "str", "choices": ["find", "run"], "default": "find"},
    "how": {"type": "dict", "default": {}},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=False)
    params = module.params
    server = generators.server_of(params["server"])
    jobs = [
        generators.Job(
            params["base"], params["model"], time_limit=params["time_limit"], seed=int.from_bytes(os.urandom(3), "big"),
            tokenizer=server["tokenizer"], trust_remote_code=server["trust_remote_code"], **cell,
        )
        for cell in params["cells"]
    ]  # fmt: skip
    for job in jobs:
        for name in generators.USUAL:
            if getattr(job, name) < 1:
                module.fail_json(msg="%s must be at least 1, it is %d" % (name, getattr(job, name)))
    if not jobs or params["time_limit"] < 1:
        module.fail_json(
            msg="there is no load to run"
            if not jobs
            else "time_limit must be at least 1, it is %d" % params["time_limit"]
        )
    if params["step"] == "run":
        order = generator_run.Order(jobs[0], params["how"], server, params["api_key"])
        directory = generator_run.detached(lambda place: generator_run.run(place, order))
        module.exit_json(changed=False, directory=directory)
    directory = tempfile.mkdtemp(prefix="benchmark-")
    try:
        found = generator_find.find(params["generator"], params["generator_python"], server, jobs[0], directory)
    except generator_find.NoGeneratorError as error:
        module.fail_json(msg="The load generator %s cannot be used: %s" % (params["generator"], error))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    module.exit_json(changed=False, generator=found.facts())


if __name__ == "__main__":
    main()
