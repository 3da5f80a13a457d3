"""TensorRT-LLM's `trtllm-serve`. Read from its sources and from logs that others posted, never run here.

Sources: NVIDIA/TensorRT-LLM 1.0 to 1.3 (tensorrt_llm/commands/serve.py at commits 4c05a748 and 00209af1, logger.py,
serve/openai_server.py, llmapi/llm.py, executor/proxy.py, _torch/pyexecutor/py_executor.py and py_executor_creator.py,
_torch/models/modeling_auto.py); posted logs of starts with 1.1.0rc3 (one GPU), 1.2.0rc2 and 1.2.0rc5, lines of four
ranks with 1.1.0rc2, and issue 5872.

Its ranks are processes `python -m mpi4py.futures.server` below `trtllm-serve`, whose titles name no rank: so no rank is
shown, and none is missed. What --config (a YAML file) says of ranks is not on the command line. Its /metrics is no page
of Prometheus; that is /prometheus/metrics, where `return_perf_metrics` is set. A line for each iteration is printed
with `print_iter_log` only; it names no tokens per second, and no queue.
"""

from __future__ import annotations

import re

from ..log.log_faults import Fault
from .engine import Engine, make_phase

# Releases take the one name or the other of each.
_RENAMED = {
    "--kv_cache_free_gpu_memory_fraction": "--free_gpu_memory_fraction",
    "--extra_llm_api_options": "--config",
    "--tp_size": "--tensor_parallel_size",
    "--pp_size": "--pipeline_parallel_size",
    "--ep_size": "--moe_expert_parallel_size",
}
ENGINE = Engine(
    name="tensorrt_llm",
    label="TensorRT-LLM",
    launch=("{venv}/bin/python", "{venv}/bin/trtllm-serve", "serve"),
    model_flag="",
    default_port=8000,
    # Its other commands (disaggregated, mm_embedding_serve, grpc) serve no models of their own over this API.
    command=re.compile(
        r"(?:^|[/ ])(?:trtllm-serve|tensorrt_llm\.commands\.serve|tensorrt_llm/commands/serve\.py) "
        r"(?!disaggregated|mm_embedding_serve|grpc)"
    ),
    process_name=re.compile(r"^trtllm"),
    unit_names=("trtllm*.service", "tensorrt-llm*.service", "tensorrt_llm*.service"),
    # Not "[TensorRT-LLM][INFO]": its kernels print that inside other engines, too.
    log_sign=re.compile(r"\[TRT-LLM\] \[|TensorRT[- ]LLM version: |trtllm-serve"),
    rank=None,
    starts=re.compile(r"Using LLM with [A-Za-z]+ backend"),
    phases=(
        make_phase("arguments", r"Using LLM with [A-Za-z]+ backend"),
        make_phase("engine", r"rank \d+ using Mpi\w+|Generating a new HMAC key|Refreshed the MPI local session"),
        make_phase("distributed", r"Rank \d+ is using GPU|Detecting local TP group|is using nccl==|NCCL version "),
        make_phase("weights", r"Prefetching \S+ to memory|GB for model weights|Loading safetensors|Loading weights"),
        make_phase("kv_cache", r"Model init total -- |Using Sampler: |for max tokens in paged KV cache"),
        make_phase("autotune", r"\[Autotuner\] Autotuning process starts", words="tunes kernels"),
        make_phase("graphs", r"Creating CUDA graph instances|CUDA graph warmup"),
        make_phase("engine_ready", r"Setting PyTorch memory fraction"),
        make_phase("listening", r"Started server process|Waiting for application startup"),
        make_phase("ready", r"Uvicorn running on"),
    ),
    ready=re.compile(r"Uvicorn running on"),
    decode=re.compile(
        r"iter = \d+, global_rank = 0, .{0,300}?num_scheduled_requests(?: =|:) (?P<running>\d+)"
        r"(?P<rate>)(?P<queue>)(?P<usage>)(?P<tokens>)(?P<graph>)"
    ),
    faults=(
        Fault(
            "port_in_use",
            re.compile(r"Failed to bind socket to \S+"),
            True,
            "it cannot listen there: another process has the port, or the address is not one of this host",
            "Find the process with ss -ltnp and stop it, or choose another port or host.",
        ),
        Fault(
            "no_cuda",
            re.compile(r"No GPU devices found on the node"),
            True,
            "PyTorch in the server's environment sees no GPU",
            "Validate the host (tag driver), and look at CUDA_VISIBLE_DEVICES and at the devices of its container.",
        ),
        Fault(
            "model_type_unknown",
            re.compile(r"Unknown architecture for AutoModelForCausalLM"),
            True,
            "the installed TensorRT-LLM does not know this type of model",
            "Install a newer one, or another engine.",
        ),
        Fault(
            "out_of_memory",
            re.compile(
                r"Executor creation failed due to insufficient GPU memory|CUDA runtime error in .{0,200}out of memory"
            ),
            True,
            "GPU memory ran out",
            "The lines below it name the component that did not fit, and what to lower.",
        ),
        Fault(
            "worker_died",
            re.compile(r"Executor worker died during initialization|MPI_ABORT was invoked"),
            True,
            "a rank ended by itself (an exception, a signal, the kernel's OOM killer)",
            "The first error of a rank above it in the log is the cause; else look into the kernel log (OOM killer, "
            "Xid).",
            general=True,
        ),
        Fault(
            "engine_dead",
            re.compile(
                r"Failed to initialize executor on rank \d+|Executor worker (?:returned error|initialization error)"
            ),
            True,
            "a rank could not start",
            "The first error above it in the log is the cause.",
            general=True,
        ),
    ),
    memory_advice={
        "unknown": "The lines below it name the component that did not fit, and what to lower.",
        "weights": "Use more GPUs, a smaller quantization, or free the GPUs.",
        "graphs": "Lower --free_gpu_memory_fraction, --max_batch_size or --max_num_tokens.",
        "serving": "Lower --free_gpu_memory_fraction, --max_batch_size or --max_num_tokens.",
    },
    tensor_parallel=("tp-size", "tensor-parallel-size"),
    model_names=(),
    context_names=("max-seq-len",),
    model_after=("serve", "trtllm-serve"),
    abbreviates=False,
    renamed={**_RENAMED, **{new: old for old, new in _RENAMED.items()}},
    server_info=("/version",),
    metrics_path="/prometheus/metrics",
    metrics={
        "running": "trtllm_num_requests_running",
        "queue": "trtllm_num_requests_waiting",
        "usage": "trtllm_kv_cache_utilization",
        "tokens_per_s": "",
    },
    packages=(r"tensorrt[-_]llm", r"tensorrt(?:[-_]cu\d+)?", "mpi4py"),
    environment_prefixes=("TRTLLM", "TLLM"),
)
