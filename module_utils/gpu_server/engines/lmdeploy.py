"""LMDeploy's `lmdeploy serve api_server`. Read from its sources and from logs that others posted, never run here.

Sources: InternLM/lmdeploy 0.16.0, commit 1263d5cd (lmdeploy/cli/serve.py and utils.py, serve/openai/api_server.py,
serve/openai/launch_server.py and endpoints/, serve/core/, metrics/loggers.py, pytorch/engine/executor/,
turbomind/turbomind.py, src/turbomind/turbomind.cc, lmdeploy/utils.py); metrics/loggers.py of 1e8ce56d for 0.9 to 0.11;
logs of its documentation and of July 2025, and issues 2089, 2229, 2381 and 3571.

With TurboMind one process works on all GPUs; the ranks of its PyTorch engine are children of Python or of Ray whose
titles name no rank: so no rank is shown, and none is missed. By default (`--log-level WARNING`) a start says little
more than the progress of the weights and that it listens.
"""

from __future__ import annotations

import re

from ..log.log_faults import Fault
from .engine import Engine, make_phase

_CACHE_ADVICE = "Lower --cache-max-entry-count, --session-len or --max-batch-size."

ENGINE = Engine(
    name="lmdeploy",
    label="LMDeploy",
    launch=("{venv}/bin/python", "{venv}/bin/lmdeploy", "serve", "api_server"),
    model_flag="",
    default_port=23333,
    command=re.compile(r"(?:^|[/ ])lmdeploy serve api_server\b|lmdeploy\.serve\.openai\.api_server\b"),
    process_name=re.compile(r"^lmdeploy"),
    unit_names=("lmdeploy*.service",),
    log_sign=re.compile(
        r" - lmdeploy - [A-Z]+ - |in a browser for detailed api usage|\[TM\]\[[A-Z]+\]|lmdeploy serve api_server"
    ),
    rank=None,
    starts=re.compile(r"input backend=|Started server process"),
    phases=(
        make_phase("arguments", r"input backend="),
        make_phase("engine", r"Build <\w+> executor|Creating processes\.|Init ray (?:cluster|workers)"),
        make_phase("distributed", r"Init distributed (?:environment|process group)|MASTER_ADDR=|is using nccl=="),
        make_phase(
            "weights",
            r"turbomind engine config:|Building Model\.|Loading weights from safetensors|Convert to turbomind",
        ),
        make_phase("kv_cache", r"Updating configs\.|Building GraphRunner|Building CacheEngine|Object cache budget"),
        make_phase(
            "graphs",
            r"Warming up model\.|Starting engine warmup|Warm-up lengths",
            words="warms up, captures CUDA graphs",
        ),
        make_phase("engine_ready", r"HINT: +Please open"),
        make_phase("listening", r"Started server process|Waiting for application startup"),
        # It binds its port after "Application startup complete", and may fail to.
        make_phase("ready", r"Uvicorn running on"),
    ),
    ready=re.compile(r"Uvicorn running on"),
    # The first form since February 2026, the second before.
    decode=re.compile(
        r"(?:Avg thr \(in/out\): [0-9.]+ / |Avg generation throughput: )(?P<rate>[0-9.]+) tokens/s, .{0,300}?"
        r"(?:Engine \(running/waiting\): |Running: )(?P<running>\d+)(?: / | reqs, Waiting: )(?P<queue>\d+)(?: reqs)?, "
        r"(?:GPU )?KV cache(?: usage)?: (?P<usage>[0-9.]+)%(?P<tokens>)(?P<graph>)"
    ),
    usage_in_percent=True,
    faults=(
        Fault(
            "memory_pool",
            re.compile(r"No enough gpu memory for (?:kv cache|state cache|runtime)"),
            True,
            "nothing, or too little, is left for the KV cache after the weights",
            "Use more GPUs (--tp) or a smaller quantization; else raise --cache-max-entry-count, or lower "
            "--max-batch-size.",
            "increase",
        ),
        Fault(
            "out_of_memory",
            re.compile(r"CUDA runtime error: out of memory"),
            True,
            "GPU memory ran out",
            _CACHE_ADVICE,
            "decrease",
        ),
        Fault(
            "port_in_use",
            re.compile(r"Port \d+ is not available"),
            True,
            "another process listens on this port",
            "Find it with ss -ltnp and stop it, or choose another (--server-port).",
        ),
        Fault(
            "child_failed",
            re.compile(
                r"Server process \d+ exited with code|Received custom termination signal from sub processing"
                r"|Ray worker exited|engine process is not alive"
            ),
            True,
            "a process of the engine ended and took the server with it",
            "The first error above it in the log is the cause.",
            general=True,
        ),
    ),
    memory_advice={
        "weights": "Use more GPUs (--tp), a smaller quantization, or free the GPUs.",
        "graphs": _CACHE_ADVICE,
        "serving": _CACHE_ADVICE,
    },
    tensor_parallel=("tp",),
    data_parallel=("dp",),
    model_names=(),
    host_names=("server-name",),
    port_names=("server-port",),
    served_names=("model-name",),
    key_names=("api-keys",),
    tls_names=("ssl",),
    context_names=("session-len",),
    model_after=("api_server",),
    underscores=True,
    dotted=True,
    metrics={
        "running": "lmdeploy:num_requests_running",
        "queue": "lmdeploy:num_requests_waiting",
        "usage": "lmdeploy:gpu_cache_usage_perc",
        "tokens_per_s": "",
    },
    packages=("lmdeploy", "ray"),
    environment_prefixes=("LMDEPLOY", "TM"),
)
