"""What differs from engine to engine.

How its processes look, what its log says in which phase, where its API is, which flags were renamed.

A new engine is one entry of ENGINES. Patterns are read from the engines' own sources (SGLang 0.5.8.post1 to 0.5.23,
vLLM 0.20 to 0.32, transformers 5) and from recorded logs; they match prefixes, because later versions append to their
lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


def _phases(*rows: tuple[str, str]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((name, re.compile(pattern)) for name, pattern in rows)


@dataclass(frozen=True)
class Engine:
    """One engine.

    `starts` begins a new start in a log; `phases` are in the order of a start; `ready` is the line that ends it.
    """

    name: str
    command: re.Pattern[str]  # matches the command line, its words joined by blanks
    module: tuple[str, ...]  # how `python` starts it
    distribution: str  # its name as an installed package
    starts: re.Pattern[str]
    phases: tuple[tuple[str, re.Pattern[str]], ...]
    ready: re.Pattern[str]
    rank: re.Pattern[str]  # title of a worker process; group 1 is the rank
    decode: re.Pattern[str]
    tensor_parallel: tuple[str, ...]
    default_port: int
    model_flag: str
    server_info: tuple[str, ...] = ()
    metrics: dict[str, str] = field(default_factory=dict)
    # flag -> its successor, or "" for one without; first version that has the new name
    renamed: dict[str, str] = field(default_factory=dict)
    log_names: dict[str, str] = field(default_factory=dict)


SGLANG = Engine(
    name="sglang",
    command=re.compile(r"(?:^|[/ ])sglang(?:\.launch_server(?= |$)| serve\b)|/sglang/launch_server\.py\b"),
    module=("-m", "sglang.launch_server"),
    distribution="sglang",
    starts=re.compile(r"server_args=ServerArgs\("),
    phases=_phases(
        ("arguments", r"server_args=ServerArgs\("),
        (
            "distributed",
            r"Init torch distributed begin|\[Gloo\] Rank \d+ is connected|is using nccl==|Init torch distributed ends",
        ),
        ("weights", r"Load weight begin|Loading safetensors|Loading pt checkpoint|Multi-thread loading shards"),
        ("kv_cache", r"Load weight end|Using KV cache dtype|KV Cache is allocated|Memory pool end"),
        ("autotune", r"Running FlashInfer autotune|Entering DeepGEMM JIT Pre-Compile session"),
        ("graphs", r"Capture .*graph begin|Capturing batches"),
        ("scheduler", r"max_total_num_tokens=\d+"),
        ("listening", r"Application startup complete|Uvicorn running on"),
        ("ready", r"The server is fired up and ready to roll"),
    ),
    ready=re.compile(r"The server is fired up and ready to roll"),
    rank=re.compile(r"sglang::scheduler(?:_\w+?)??_TP(\d+)"),
    decode=re.compile(
        r"Decode batch(?: \[\d+\])?, #running-req: (?P<running>\d+),(?:.*?#(?:full )?token: (?P<tokens>\d+),)?"
        r"(?:.*?token usage: (?P<usage>[0-9.]+),)?"
        r"(?:.*?(?:cuda|cpu|npu|xpu|\w+) graph: (?P<graph>True|False),)?.*?gen throughput \(token/s\): "
        r"(?P<rate>[0-9.]+), #queue-req: (?P<queue>\d+)"
    ),
    tensor_parallel=("tp", "tp-size", "tensor-parallel-size"),
    default_port=30000,
    model_flag="--model-path",
    server_info=("/server_info", "/get_server_info"),
    metrics={
        "running": "sglang:num_running_reqs",
        "queue": "sglang:num_queue_reqs",
        "usage": "sglang:token_usage",
        "tokens_per_s": "sglang:gen_throughput",
    },
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
)

VLLM = Engine(
    name="vllm",
    command=re.compile(
        r"(?:^|[/ ])vllm(?: serve\b|\.entrypoints\.openai\.api_server\b|\.entrypoints\.cli\.main serve\b)"
    ),
    module=("-m", "vllm.entrypoints.cli.main", "serve"),
    distribution="vllm",
    starts=re.compile(r"non-default args: \{"),
    phases=_phases(
        ("arguments", r"non-default args: \{"),
        ("engine", r"Initializing a V\d LLM engine"),
        ("distributed", r"distributed_init_method=|is using nccl=="),
        ("weights", r"Starting to load model|Loading safetensors"),
        ("compile", r"Model loading took|Dynamo bytecode transform time|torch\.compile took|Compiling a graph"),
        ("kv_cache", r"Available KV cache memory|KV cache size:|Explicitly set .* for KV cache"),
        ("autotune", r"\[Autotuner\]: Autotuning process starts|\[AutoTuner\]: Tuning"),
        ("graphs", r"Capturing CUDA graphs"),
        ("engine_ready", r"init engine \(profile"),
        ("listening", r"Starting vLLM (?:API )?server|Started server process"),
        ("ready", r"Application startup complete"),
    ),
    ready=re.compile(r"Application startup complete"),
    rank=re.compile(r"VLLM::Worker(?:_\w+?)??_TP(\d+)|VllmWorker-(\d+)"),
    decode=re.compile(
        r"Engine \d+: .*?Avg generation throughput: (?P<rate>[0-9.]+) tokens/s, Running: (?P<running>\d+) reqs, "
        r"Waiting: (?P<queue>\d+) reqs"
        r"(?:, GPU KV cache usage: (?P<usage>[0-9.]+)%)?(?P<tokens>)(?P<graph>)"
    ),
    tensor_parallel=("tensor-parallel-size", "tp"),
    default_port=8000,
    model_flag="",
    server_info=("/version",),
    metrics={
        "running": "vllm:num_requests_running",
        "queue": "vllm:num_requests_waiting",
        "usage": "vllm:kv_cache_usage_perc",
        "tokens_per_s": "",
    },
    renamed={
        "--disable-log-requests": "--no-enable-log-requests",
        "--use-v2-block-manager": "",
        "--guided-decoding-backend": "--structured-outputs-config.backend",
        "--swap-space": "",
        "--cuda-graph-sizes": "--cudagraph-capture-sizes",
    },
)

TRANSFORMERS = Engine(
    name="transformers",
    command=re.compile(r"(?:^|[/ ])transformers(?:-cli)? serve\b"),
    module=("-m", "transformers.cli.transformers", "serve"),
    distribution="transformers",
    starts=re.compile(r"Started server process"),
    phases=_phases(
        ("weights", r"\[transformers\] Loading |Loading weights|Loading checkpoint shards"),
        ("listening", r"Started server process|Waiting for application startup"),
        ("ready", r"Uvicorn running on"),  # it binds its port after "Application startup complete", and may fail to
    ),
    ready=re.compile(r"Uvicorn running on"),
    rank=re.compile(r"(?!)"),
    decode=re.compile(r"(?!)(?P<running>)(?P<rate>)(?P<queue>)(?P<usage>)(?P<tokens>)(?P<graph>)"),
    tensor_parallel=(),
    default_port=8000,
    model_flag="",
)

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (SGLANG, VLLM, TRANSFORMERS)}
# Signs in a log of which engine wrote it, where the process is gone.
_SIGNS = (
    (
        "sglang",
        re.compile(
            r"ServerArgs\(|sglang is using|--mem-fraction-static|Scheduler watchdog timeout|ready to roll|Decode "
            r"batch.*#running"
        ),
    ),
    ("vllm", re.compile(r"\(APIServer pid=|\(EngineCore|vLLM|vllm\b")),
    (
        "transformers",
        re.compile(
            r"^\[transformers\] Loading |transformers/cli/(?:serve|serving)|options for 'transformers serve'",
            re.MULTILINE,
        ),
    ),
)


def find_engine_of_command(words: Sequence[str]) -> Engine | None:
    """The engine that a command line starts."""
    line = " ".join(words)
    return next((engine for engine in ENGINES.values() if engine.command.search(line)), None)


def find_engine_of_log(text: str) -> Engine | None:
    """The engine that wrote a log."""
    return next((ENGINES[name] for name, sign in _SIGNS if sign.search(text)), None)


def parse_flags(words: Sequence[str]) -> dict[str, str | bool | list[str]]:
    """`--name value`, `--name=value` and bare flags of a command line: ``{"name": value}``.

    True for a flag without a value.
    """
    found: dict[str, str | bool | list[str]] = {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("--") or len(word) < 3:
            continue
        name, equals, value = word[2:].partition("=")
        values = [value] if equals else []
        while not equals and position < len(words) and not _is_flag(words[position]):
            values.append(words[position])
            position += 1
        found[name.replace("_", "-")] = True if not values else values[0] if len(values) == 1 else values
    return found


def _is_flag(word: str) -> bool:
    return word.startswith("--") or bool(re.match(r"-[A-Za-z]", word))


def find_tensor_parallel(engine: Engine, settings: dict[str, str | bool | list[str]]) -> int | None:
    """The number of tensor-parallel ranks that the arguments ask for; 1 where they say nothing."""
    for name in engine.tensor_parallel:
        value = settings.get(name)
        if isinstance(value, str):
            return int(value) if value.isdigit() else None
    return 1


def find_model_path(engine: str | None, words: Sequence[str]) -> str | None:
    """The model of a command line: a path or a name on a hub; None where it does not say."""
    settings = parse_flags(words)
    for name in ("model-path", "model"):
        value = settings.get(name)
        if isinstance(value, str):
            return value
    if engine in ("vllm", "transformers") and "serve" in words:
        following = words[list(words).index("serve") + 1 :]
        return following[0] if following and not following[0].startswith("-") else None
    return None


def find_served_name(engine: str | None, words: Sequence[str]) -> str | None:
    """The name by which requests ask for the model.

    The one that is given (the first of several), else the model's own.
    """
    given = parse_flags(words).get("served-model-name")
    given = given[0] if isinstance(given, list) and given else given
    return given if isinstance(given, str) else find_model_path(engine, words)
