"""llama.cpp's HTTP server, `llama-server` or `llama serve`. Read from its sources only, never run here.

Sources: llama.cpp 0.5.0 as llama-cpp-python 0.3.36 holds it (tools/server/server.cpp, server-context.cpp,
server-http.cpp, server-task.cpp, common/arg.cpp, common/common.cpp, common/log.cpp, src/llama*.cpp, ggml/src/gguf.cpp,
ggml/src/ggml-cuda/ggml-cuda.cu, app/llama.cpp); tools/server/server.cpp at commit 00dd0816; and the logs in its issues
13085, 20431 and 22718 and pull request 14363, of builds from April 2025 to June 2026.

It has no ranks: one process works on all GPUs (--split-mode layer, row, tensor). It copies between GPUs by peer access
only where the variable GGML_CUDA_P2P is set; only --split-mode tensor calls NCCL, in a build that has it.
Its log has no clock, only minutes since the start. Since 2026 the lines of the library (buffers, layers on the GPU)
are shown with `-lv 4` only, and no request is logged. What it logs of speed is one request's own, so the log gives no
figures of the server; /metrics does, with --metrics.
"""

from __future__ import annotations

import re

from ..log.log_faults import Fault
from .engine import Engine, make_phase

_MEMORY_ADVICE = (
    "Lower --ctx-size, --parallel or --ubatch-size, keep fewer layers on the GPUs (--n-gpu-layers), or leave --fit on."
)
_SHORT = {
    "m": "model", "mu": "model-url", "hf": "hf-repo", "hfr": "hf-repo", "hff": "hf-file", "hft": "hf-token",
    "a": "alias", "c": "ctx-size", "np": "parallel", "b": "batch-size", "ub": "ubatch-size", "fa": "flash-attn",
    "ngl": "n-gpu-layers", "sm": "split-mode", "ts": "tensor-split", "mg": "main-gpu", "dev": "device",
    "ctk": "cache-type-k", "ctv": "cache-type-v", "ot": "override-tensor", "fit": "fit", "lv": "log-verbosity",
}  # fmt: skip

ENGINE = Engine(
    name="llamacpp",
    label="llama.cpp",
    launch=("{venv}/bin/llama-server",),
    model_flag="model",
    default_port=8080,
    command=re.compile(r"^(?:\S*/)?(?:llama-server|llama serve)(?= |$)"),
    process_name=re.compile(r"^llama(?:-server)?$"),
    unit_names=("llama-server*.service", "llama_server*.service", "llamacpp*.service", "llama-cpp*.service"),
    log_sign=re.compile(
        r"(?:srv +\w+|main): (?:loading model|model loaded)|llama_model_loader: |\bllama_server: "
        r"|system_info: n_threads"
    ),
    rank=None,
    starts=re.compile(r"system_info: n_threads = |: verbosity = [0-9]+ \(adjust with"),
    phases=(
        make_phase("arguments", r"system_info: n_threads = |verbosity = \d+ \(adjust with"),
        make_phase(
            "weights",
            r"(?:main|llama_server|load_model): loading model|fitting params to device memory"
            r"|llama_model_loader: loaded meta data|load_tensors: loading model tensors",
        ),
        make_phase("kv_cache", r"llama_context: constructing|llama_kv_cache|KV buffer size ="),
        make_phase("warm_up", r"warming up the model with an empty run", words="warms up"),
        make_phase("scheduler", r"initializing(?: slots)?, n_slots = "),
        # It listens before it loads, and answers 503 until it has loaded. A router serves without a model of its own.
        make_phase("ready", r"(?:main|llama_server): model loaded|starting (?:router server|server in router mode)"),
    ),
    ready=re.compile(r"(?:main|llama_server): model loaded|starting (?:router server|server in router mode)"),
    decode=re.compile(r"(?!)(?P<running>)(?P<rate>)(?P<queue>)(?P<usage>)(?P<tokens>)(?P<graph>)"),
    faults=(
        Fault(
            "unrecognized_arguments",
            re.compile(r"error: invalid argument: |error while handling argument \"|error: unknown value for --"),
            True,
            "this build of llama.cpp does not know these arguments, or not these values",
            "Compare them with llama-server --help of the same build.",
        ),
        Fault(
            "port_in_use",
            re.compile(r"couldn't bind HTTP server socket|couldn't start HTTP listener on "),
            True,
            "it cannot listen there: another process has the port, or the address is not one of this host",
            "Find the process with ss -ltnp and stop it, or choose another port (--port) or address (--host).",
        ),
        Fault(
            "model_type_unknown",
            re.compile(r"unknown model architecture: '"),
            True,
            "this build of llama.cpp does not know the architecture of this model",
            "Build or install a newer llama.cpp.",
        ),
        Fault(
            "model_not_found",
            re.compile(r"failed to open GGUF file '|failed to download model: |error: --model is required"),
            True,
            "the model is not on this host and cannot be downloaded",
            "Check the path (--model), the name (--hf-repo), HF_TOKEN and the network.",
        ),
        Fault(
            "weights_unreadable",
            re.compile(
                r"gguf_\w+: (?:invalid magic characters|failed to read (?:magic|header|key-value pairs|tensor))"
                r"|data is not within the file bounds"
            ),
            True,
            "the file of the model is cut off or is no GGUF file",
            "Compare its size with the hub's and download it anew.",
        ),
        Fault(
            "out_of_memory",
            re.compile(
                r"cudaMalloc failed: out of memory|(?:unable|failed) to allocate CUDA\w* buffer"
                r"|CUDA error: out of memory"
            ),
            True,
            "GPU memory ran out",
            _MEMORY_ADVICE,
        ),
        Fault(
            "no_cuda",
            re.compile(
                r"ggml_cuda_init: failed to initialize CUDA|no usable GPU found|invalid value for main_gpu: \d+ "
                r"\(available devices: 0\)"
            ),
            False,
            "llama.cpp sees no GPU, and goes on with the CPU: a build without CUDA, no driver, or no device to see",
            "Validate the host (tag driver), look at CUDA_VISIBLE_DEVICES, and ask the build: llama-server "
            "--list-devices.",
        ),
        Fault(
            "load_failed",
            re.compile(
                r"exiting due to (?:model loading|HTTP server) error|error loading model: |failed to create_?context|"
                r"failed to load model"
            ),
            True,
            "the model was not loaded",
            "The first error above it in the log is the cause.",
            general=True,
        ),
        Fault(
            "engine_dead",
            re.compile(r"CUDA error: (?!out of memory)|GGML_ASSERT\(|ggml_abort"),
            True,
            "llama.cpp ended itself on an error of CUDA or of its own",
            "Read the lines from here on: the function, the device and the CUDA call. Then look into the kernel log "
            "(Xid).",
            general=True,
        ),
    ),
    memory_advice=dict.fromkeys(("unknown", "weights", "graphs", "serving"), _MEMORY_ADVICE),
    # Up to 2025: "request: POST /v1/completions 127.0.0.1 200"; with -lv 4 "done request: ...".
    request=re.compile(r"request: (GET|POST|HEAD|PUT) (\S+) \S+ (\d{3})\b"),
    model_names=("hf-repo", "model-url", "model"),
    served_names=("alias",),
    context_names=("ctx-size",),
    tls_names=("ssl-cert-file",),
    key_names=("api-key-file", "api-key"),
    short=_SHORT,
    settings_prefix="LLAMA_ARG",
    abbreviates=False,
    underscores=True,
    server_info=("/props",),
    version_key="build_info",
    metrics={
        "running": "llamacpp:requests_processing",
        "queue": "llamacpp:requests_deferred",
        "usage": "",
        "tokens_per_s": "",  # predicted_tokens_seconds is the average since the start
    },
    environment_prefixes=("LLAMA", "GGML"),
)
