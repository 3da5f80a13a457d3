#!/usr/bin/python
"""The inference_server_arguments module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_server_arguments
short_description: Check the arguments of an inference server against the engine that is installed
description:
  - Runs the engine's own C(--help) and names every argument that it does not know, with its successor where it was
    renamed, and every value that is not among its choices. So a server that serves is not stopped for one that cannot
    start.
  - Says whether the type of the model is known to the installed transformers or engine, where the model's
    C(config.json) is on the host, and whether a model that is given as a path is there and can be read by the server's
    user.
options:
  engine:
    description: The engine, one of those in C(module_utils/gpu_server/engines/).
    type: str
    required: true
  command:
    description: The command that starts it, without arguments.
    type: list
    elements: str
    required: true
  arguments:
    description: Argument names, without dashes, and their values. Values that look secret are not shown.
    type: dict
    default: {}
  model:
    description: The model, a directory or a name on the hub.
    type: str
  user:
    description: The user that the server runs as. Without it, nobody asks whether that user can read the model.
    type: str
  environment:
    description: The environment that the server will have.
    type: dict
    default: {}
  container:
    description:
      - Ask the engine of an image, in a container of its own without network and GPUs, which is removed afterwards. An
        engine that shows its options only where it finds a GPU is asked a second time with them.
      - runtime, program, name, image, asked (its name), user, gpu_options, init, selinux, readable and options as in
        C(module_utils/gpu_provision/container_words.py).
    type: dict
  timeout:
    description: Seconds that C(--help) may take; engines import PyTorch for it.
    type: int
    default: 180
extends_documentation_fragment:
  - gpu_host
"""

EXAMPLES = r"""
- name: Would this start?
  inference_server_arguments:
    engine: sglang
    command: [/opt/sglang/bin/python, -m, sglang.launch_server]
    arguments: {tp: 8, nsa-decode-backend: trtllm}
"""

RETURN = r"""
problems:
  description: "What is wrong: a list of argument, problem, successor."
  returned: always
  type: list
  elements: dict
shortened:
  description:
    - The arguments whose name is the beginning of one that the engine has, which it takes for that one, and the full
      name, such as C(--tp) for C(--tp-size).
  returned: always
  type: dict
options:
  description: How many options the engine has.
  returned: always
  type: int
names:
  description: Their names.
  returned: always
  type: list
  elements: str
model_type:
  description: model_type, known, transformers (its version), config (the file).
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_host.evidence.interface import Evidence, Outcome
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_provision import container_trial
from ansible.module_utils.gpu_server import arguments, engines, model_path, model_type


def ask_for_help(evidence: Evidence, params: dict, environment: dict) -> tuple[Outcome, dict, str]:
    """(what the engine answers, of this host or of an image, the options that it shows, the command).

    The first way to ask that shows every option, which shows the argument for the port too; else what shows most.
    """
    engine = engines.ENGINES[params["engine"]]
    answers = []
    for way in (engine.help, *([engine.help_before] if engine.help_before else [])):
        outcome = ask_once(evidence, params, environment, [*params["command"], *way])
        options = (
            arguments.parse_options(outcome.text + "\n" + outcome.error_text) if outcome.ok and not outcome.rc else {}
        )
        answers.append((outcome, options, " ".join([*params["command"], *way])))
        if any("--" + name in options for name in engine.port_names):
            return answers[-1]
    return max(answers, key=lambda answer: len(answer[1]))


def ask_once(evidence: Evidence, params: dict, environment: dict, words: list) -> Outcome:
    if not params["container"]:
        settings = ["%s=%s" % item for item in environment.items()]
        return evidence.run(["env", *settings, *words], params["timeout"])
    plan = {**params["container"], "environment": environment}
    return container_trial.run_in_image(
        evidence, plan, words, params["timeout"], lambda text: bool(arguments.parse_options(text))
    )


def read_model_type(evidence: Evidence, params: dict, environment: dict) -> dict:
    """What is known of the model's type, from the files of this host or of the image."""
    if not params["container"]:
        return model_type.read_model_type(evidence, params["model"] or "", params["command"], environment)
    plan = {**params["container"], "environment": environment}

    def ask(words: list) -> str:
        return container_trial.run_in_image(evidence, plan, words, params["timeout"]).text

    return model_type.read_type_of_image(evidence, params["model"] or "", environment, ask)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "engine": {"type": "str", "required": True, "choices": sorted(engines.ENGINES)},
            "command": {"type": "list", "elements": "str", "required": True},
            "arguments": {"type": "dict", "default": {}},
            "model": {"type": "str"},
            "user": {"type": "str"},
            "environment": {"type": "dict", "default": {}},
            "container": {"type": "dict"},
            "timeout": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    params = module.params
    environment = {str(name): str(value) for name, value in params["environment"].items()}
    evidence = LiveEvidence()
    engine = engines.ENGINES[params["engine"]]
    outcome, options, asked = ask_for_help(evidence, params, environment)
    if not options:
        text = outcome.text + "\n" + outcome.error_text
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
        why = outcome.reason or "exit status %s: %s" % (outcome.rc, last[:300])
        where = "in the image %s" % params["container"]["asked"] if params["container"] else "in that environment"
        module.fail_json(msg="%s does not show its options (%s). Is the engine installed %s?" % (asked, why, where))
    found = arguments.find_problems(params["arguments"], options, engine)
    shortened = arguments.find_shortened(params["arguments"], options, engine)
    kind = read_model_type(evidence, params, environment)
    result = {"changed": False, "problems": found, "shortened": shortened, "options": len(options), "model_type": kind}
    result["names"] = sorted(options)
    wrong = []
    if found:
        wrong.append(
            "The installed %s does not take these arguments:\n%s" % (params["engine"], arguments.describe_faults(found))
        )
    unusable = model_path.find_problem(evidence, params["model"] or "", params["user"])
    if unusable and module.check_mode:  # without check mode, an earlier task may have brought it
        module.warn(unusable)
    elif unusable:
        wrong.append(unusable + ".")
    if kind["known"] is False:
        told = (kind["transformers"] or "", kind["model_type"], kind["config"])
        wrong.append(
            "The installed transformers %s does not know the model type %s (%s). Install a newer transformers." % told
        )
    if wrong:
        module.fail_json(msg="Nothing was changed. " + "\n".join(wrong), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
