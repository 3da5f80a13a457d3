#!/usr/bin/python
"""Documentation of the inference_server_ready action; the code is plugins/action/inference_server_ready.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_server_ready
short_description: Wait for an inference server by evidence, and show what it does meanwhile
description:
  - Looks at the server with M(inference_server_facts) every few seconds and shows the phase of its start as it goes.
  - Ends with V(ready); or fails with V(failed) and the line of the log that says why; or with V(stalled), the phase,
    since when nothing has moved (log, GPU memory, compilers, disk), the most likely cause and what to do.
  - A server that says that it is ready must serve the right model and answer a real request.
options:
  unit:
    description: The systemd unit of the server.
    type: str
  port:
    description: The port of the server, where several run.
    type: int
  log:
    description: The log file, as in M(inference_server_facts).
    type: path
  api_key:
    description: The key of the API, if it wants one.
    type: str
  model:
    description: The name that the server must list.
    type: str
  context_length:
    description: The context length that it must have.
    type: int
  expected_text:
    description: A regular expression that the answer to "The capital of France is" must match.
    type: str
  interval:
    description: Seconds between two looks.
    type: float
    default: 5
  patience_scale:
    description:
      - Factor on the time that each phase may show nothing new (3 minutes to connect ranks, 5 to load weights, 15 to
        compile).
    type: float
    default: 1.0
  limit:
    description:
      - Seconds after which the wait ends in any case, with the phase and the likeliest cause.
      - V(0) is for as long as something moves.
    type: int
    default: 7200
  together:
    description:
      - A word that is the same for all hosts that serve one model together, and for this one start. The wait for each
        rank then ends as soon as that for another has failed, with the cause V(other_rank).
    type: str
  members:
    description:
      - Of a server over several hosts, for rank 0, the addresses of the other hosts by the names that the wait shows
        while they are not connected.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Changes nothing, ever. In check mode it does not wait.
extends_documentation_fragment:
  - gpu_host.authors
"""

EXAMPLES = r"""
- name: Wait for the server
  inference_server_ready:
    unit: inference-server.service
    model: glm-5
"""

RETURN = r"""
state:
  description: ready, failed or stalled.
  returned: always
  type: str
phase:
  description: The last phase of the start that the log shows.
  returned: always
  type: str
cause:
  description: The kind of the fault or the stall.
  returned: when not ready
  type: str
advice:
  description: What to do.
  returned: when not ready
  type: str
history:
  description: What was shown, line by line.
  returned: always
  type: list
  elements: str
seconds:
  description: How long it took.
  returned: always
  type: float
"""
