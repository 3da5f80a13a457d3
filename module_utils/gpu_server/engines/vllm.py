"""vLLM. Patterns are from its sources, 0.20 to 0.32, and from recorded logs."""

from __future__ import annotations

import re

from ..load.generator import Generator
from ..load.job import Job
from ..load.result_files import parse_serving
from ..log.log_faults import Fault
from .engine import Engine, make_phase


def _required(job: Job) -> list[tuple[str, str | None]]:
    # Not --random-range-ratio: the exact length is 1.0 up to 0.8 and 0.0 after it, and the default in both. Not
    # --backend: up to 0.10 it is --endpoint-type, and the OpenAI API is the default of either.
    directory, _slash, name = job.result.rpartition("/")
    return [
        ("--base-url", job.base), ("--model", job.model), ("--dataset-name", "random"),
        ("--random-input-len", str(job.prompt_tokens)), ("--random-output-len", str(job.output_tokens)),
        ("--num-prompts", str(job.requests)), ("--max-concurrency", str(job.concurrency)), ("--seed", str(job.seed)),
        ("--ignore-eos", None), ("--metric-percentiles", "95"), ("--save-result", None), ("--result-dir", directory),
        ("--result-filename", name),
    ]  # fmt: skip


def _optional(job: Job) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = [("--save-detailed", None), ("--temperature", "0"), ("--num-warmups", "1")]
    found += [("--tokenizer", job.tokenizer)] if job.tokenizer else []
    found += [("--trust-remote-code", None)] if job.trust_remote_code else []
    return found


GENERATOR = Generator(
    name="vllm",
    distribution="vllm",
    modules=(("vllm.entrypoints.cli.main",),),
    program=None,
    verb=("bench", "serve"),
    key_variable="OPENAI_API_KEY",
    required=_required,
    optional=_optional,
    choices={"--dataset-name": "random"},
    parse=parse_serving,
    needs_tokenizer=True,
    helps=("--help=all", "--help"),  # without "all" it names groups only; argparse, which 0.8 had, refuses the value
)

RAY_FAULTS = (
    # ray/_private/node.py and utils.py (check_version_info); vllm/executor/ray_utils.py.
    Fault(
        "host_missing",
        re.compile(
            r"Failed to connect to GCS(?! at address \S+ within)|Could not connect to GCS|Unable to connect to GCS"
        ),
        True,
        "the Ray node does not reach rank 0, where the cluster's table (GCS) is",
        "Look at the unit on rank 0, and at the firewall: every port must be open between these hosts.",
    ),
    Fault(
        "versions_differ",
        re.compile(r"Version mismatch: The cluster was started with"),
        True,
        "this host has another Ray or another Python than rank 0",
        "Install the same versions on every host.",
    ),
    Fault(
        "host_missing",
        re.compile(
            r"Cannot provide a placement group of|is not included in a placement group"
            r"|Current node has no GPU available"
        ),
        True,
        "Ray has fewer GPUs than ranks: a host has not joined, or gives fewer GPUs",
        "ray status on rank 0 says what has joined. Look at the unit and its log on the hosts that have not.",
    ),
    Fault(
        "peer_gone",
        re.compile(
            r"Some Ray subprocesses exited unexpectedly|ActorDiedError|ray\.exceptions\.(?:RayActorError|NodeDiedError)"
        ),
        True,
        "a rank, or the Ray node that it ran in, has ended on some host",
        "Look at the first error of each host's log.",
        general=True,
    ),
)

ENGINE = Engine(
    name="vllm",
    label="vLLM",
    launch=("{venv}/bin/python", "-m", "vllm.entrypoints.cli.main", "serve"),
    model_flag="",
    default_port=8000,
    command=re.compile(
        r"(?:^|[/ ])vllm(?: serve\b|\.entrypoints\.openai\.api_server\b|\.entrypoints\.cli\.main serve\b)"
    ),
    process_name=re.compile(r"(?i)vllm"),
    unit_names=("vllm*.service",),
    log_sign=re.compile(r"\(APIServer pid=|\(EngineCore|vLLM|vllm\b"),
    rank=re.compile(r"VLLM::Worker(?:_\w+?)??_TP(\d+)|VllmWorker-(\d+)"),
    starts=re.compile(r"non-default args: \{"),
    phases=(
        make_phase("arguments", r"non-default args: \{"),
        make_phase("engine", r"Initializing a V\d LLM engine"),
        # executor/ray_utils.py; up to half an hour, without another line than how long it has waited.
        make_phase("placement", r"Creating a new placement group|Waiting for creating a placement group"),
        make_phase(
            "distributed", r"distributed_init_method=|is using nccl==|Copying the following environment variables"
        ),
        make_phase("weights", r"Starting to load model|Loading safetensors"),
        make_phase(
            "compile", r"Model loading took|Dynamo bytecode transform time|torch\.compile took|Compiling a graph"
        ),
        make_phase("kv_cache", r"Available KV cache memory|KV cache size:|Explicitly set .* for KV cache"),
        make_phase("autotune", r"\[Autotuner\]: Autotuning process starts|\[AutoTuner\]: Tuning"),
        make_phase("graphs", r"Capturing CUDA graphs"),
        make_phase("engine_ready", r"init engine \(profile"),
        make_phase("listening", r"Starting vLLM (?:API )?server|Started server process"),
        make_phase("ready", r"Application startup complete"),
    ),
    ready=re.compile(r"Application startup complete"),
    decode=re.compile(
        r"Engine \d+: .{0,200}?Avg generation throughput: (?P<rate>[0-9.]+) tokens/s, Running: (?P<running>\d+) reqs, "
        r"Waiting: (?P<queue>\d+) reqs"
        r"(?:, GPU KV cache usage: (?P<usage>[0-9.]+)%)?(?P<tokens>)(?P<graph>)"
    ),
    usage_in_percent=True,
    memory_advice={
        "weights": "Use more GPUs, a smaller quantization, or free the GPUs; --gpu-memory-utilization does not help "
        "here.",
        "graphs": "Lower --gpu-memory-utilization (0.02 to 0.05 less), or --max-num-seqs.",
        "serving": "Lower --gpu-memory-utilization or --max-num-batched-tokens.",
    },
    tensor_parallel=("tp", "tensor-parallel-size"),
    data_parallel=("dp", "data-parallel-size"),
    pipeline_parallel=("pp", "pipeline-parallel-size"),
    # entrypoints/cli/serve.py, run_headless: the workers of the multiprocessing executor, and no port. Older versions
    # have none of these arguments, and need Ray for several hosts: 0.9 and 0.10, executor/ray_distributed_executor.py.
    nodes_name="nnodes",
    node_rank_name="node-rank",
    meeting=(("master-addr", "{address}"), ("master-port", "{port}")),
    address_variable="VLLM_HOST_IP",
    follower_flags=("headless",),
    ray_setting=("distributed-executor-backend", "ray"),
    ray_rank=re.compile(r"ray::RayWorkerWrapper\b"),
    faults=RAY_FAULTS,
    model_names=("model",),
    context_names=("max-model-len",),
    model_after=("serve",),
    short={
        "tp": "tensor-parallel-size",
        "pp": "pipeline-parallel-size",
        "dp": "data-parallel-size",
        "n": "nnodes",
        "r": "node-rank",
    },
    help=("--help=all",),  # it shows its options only when asked for all of them
    help_before=("--help",),  # 0.9 and 0.10 search for the word "all", and 0.8 refuses it
    underscores=True,
    dotted=True,
    renamed={
        "--disable-log-requests": "--no-enable-log-requests",
        "--use-v2-block-manager": "",
        "--guided-decoding-backend": "--structured-outputs-config.backend",
        "--swap-space": "",
        "--cuda-graph-sizes": "--cudagraph-capture-sizes",
    },
    server_info=("/version",),
    metrics={
        "running": "vllm:num_requests_running",
        "queue": "vllm:num_requests_waiting",
        "usage": "vllm:kv_cache_usage_perc",
        "tokens_per_s": "",
    },
    packages=("vllm", "ray"),
    model_type_files=("vllm/transformers_utils/config.py",),
    p2p_cache=".cache/vllm",
    generator=GENERATOR,
)
