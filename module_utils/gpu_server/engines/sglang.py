"""SGLang. Patterns are from its sources, 0.5.8.post1 to 0.5.23, and from recorded logs."""

from __future__ import annotations

import re

from ..load.generator import Generator
from ..load.job import Job
from ..load.result_files import parse_serving
from .engine import Engine, make_phase


def _required(job: Job) -> list[tuple[str, str | None]]:
    # "random" would fetch the ShareGPT data set; a range ratio of 1 is the exact length here, and anything down to one
    # token at its default.
    return [
        ("--backend", "sglang-oai"), ("--base-url", job.base), ("--model", job.model), ("--dataset-name", "random-ids"),
        ("--random-input-len", str(job.prompt_tokens)), ("--random-output-len", str(job.output_tokens)),
        ("--random-range-ratio", "1.0"), ("--num-prompts", str(job.requests)),
        ("--max-concurrency", str(job.concurrency)), ("--seed", str(job.seed)), ("--output-file", job.result),
    ]  # fmt: skip


def _optional(job: Job) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = [("--output-details", None)]
    found += [("--tokenizer", job.tokenizer)] if job.tokenizer else []
    return found


GENERATOR = Generator(
    name="sglang",
    distribution="sglang",
    # The second is the name up to 0.5.12, and deprecated after it.
    modules=(("sglang.benchmark.serving",), ("sglang.bench_serving",)),
    program=None,
    verb=(),
    key_variable="OPENAI_API_KEY",
    required=_required,
    optional=_optional,
    choices={"--backend": "sglang-oai", "--dataset-name": "random-ids"},
    parse=parse_serving,
)

ENGINE = Engine(
    name="sglang",
    label="SGLang",
    launch=("{venv}/bin/python", "-m", "sglang.launch_server"),
    model_flag="model-path",
    default_port=30000,
    command=re.compile(r"(?:^|[/ ])sglang(?:\.launch_server(?= |$)| serve\b)|/sglang/launch_server\.py\b"),
    process_name=re.compile(r"sglang"),
    unit_names=("sglang*.service",),
    log_sign=re.compile(
        r"ServerArgs\(|sglang is using|--mem-fraction-static|Scheduler watchdog timeout|ready to roll|Decode "
        r"batch.*#running"
    ),
    # setproctitle in managers/scheduler.py: `_TPn` only where there are several ranks of that kind; of one GPU alone
    # the name ends with `scheduler` (seen with 0.5.17 and --tp 1), of data parallel ones with `_DPn`.
    rank=re.compile(r"sglang::scheduler(?:(?:_\w+?)??_TP(\d+)|_DP(\d+)(?!\w)|(?![\w]))"),
    starts=re.compile(r"server_args=ServerArgs\("),
    phases=(
        make_phase("arguments", r"server_args=ServerArgs\("),
        make_phase(
            "distributed",
            r"Init torch distributed begin|\[Gloo\] Rank \d+ is connected|is using nccl==|Init torch distributed ends",
        ),
        make_phase(
            "weights", r"Load weight begin|Loading safetensors|Loading pt checkpoint|Multi-thread loading shards"
        ),
        make_phase("kv_cache", r"Load weight end|Using KV cache dtype|KV Cache is allocated|Memory pool end"),
        make_phase("autotune", r"Running FlashInfer autotune|Entering DeepGEMM JIT Pre-Compile session"),
        make_phase("graphs", r"Capture .*graph begin|Capturing batches"),
        make_phase("scheduler", r"max_total_num_tokens=\d+"),
        make_phase("listening", r"Application startup complete|Uvicorn running on"),
        make_phase("ready", r"The server is fired up and ready to roll"),
    ),
    ready=re.compile(r"The server is fired up and ready to roll"),
    decode=re.compile(
        r"Decode batch(?: \[\d+\])?[.,] #running-req: (?P<running>\d+),(?:.{0,200}?#(?:full )?token: (?P<tokens>\d+),)?"
        r"(?:.{0,200}?token usage: (?P<usage>[0-9.]+),)?"
        r"(?:.{0,200}?\w graph: (?P<graph>True|False),)?.{0,200}?gen throughput \(token/s\): "
        r"(?P<rate>[0-9.]+), #queue-req: (?P<queue>\d+)"
    ),
    tensor_parallel=("tp", "tp-size", "tensor-parallel-size"),
    data_parallel=("dp", "dp-size", "data-parallel-size"),
    pipeline_parallel=("pp-size", "pipeline-parallel-size"),
    # entrypoints/engine.py: a node whose rank is not 0 runs schedulers only, and launch_dummy_health_check_server once
    # they are ready.
    nodes_name="nnodes",
    node_rank_name="node-rank",
    meeting=(("dist-init-addr", "{address}:{port}"),),
    follower_answers=True,
    model_names=("model", "model-path"),
    context_names=("context-length",),
    # flag -> its successor in a later version, and back: which of both the installed one has, its --help says.
    renamed={
        "--nsa-decode-backend": "--dsa-decode-backend",
        "--nsa-prefill-backend": "--dsa-prefill-backend",
        "--nsa-prefill": "--dsa-prefill-backend",
        "--nsa-decode": "--dsa-decode-backend",
        "--enable-flashinfer-allreduce-fusion": "--flashinfer-allreduce-fusion-backend",
        "--disable-cuda-graph": "--cuda-graph-backend-decode=disabled --cuda-graph-backend-prefill=disabled",
        "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode",
        "--enable-dp-attention": "--attn-dp-size",
        "--enable-nan-detection": "the environment variable SGLANG_ENABLE_NAN_LOGITS_CHECK",
        "--dsa-decode-backend": "--nsa-decode-backend",
        "--dsa-prefill-backend": "--nsa-prefill-backend",
        "--flashinfer-allreduce-fusion-backend": "--enable-flashinfer-allreduce-fusion",
        "--cuda-graph-max-bs-decode": "--cuda-graph-max-bs",
    },
    server_info=("/server_info", "/get_server_info"),
    metrics={
        "running": "sglang:num_running_reqs",
        "queue": "sglang:num_queue_reqs",
        "usage": "sglang:token_usage",
        "tokens_per_s": "sglang:gen_throughput",
    },
    packages=("sglang", r"sgl[-_]kernel"),
    model_type_files=("sglang/srt/utils/hf_transformers_utils.py", "sglang/srt/utils/hf_transformers/config.py"),
    p2p_cache=".cache/sglang",
    generator=GENERATOR,
)
