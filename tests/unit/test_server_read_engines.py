# ruff: noqa: E501  (lines of logs)
"""Engines that were read from their sources and public logs only: TensorRT-LLM, llama.cpp's server, LMDeploy.

The lines are those that the named issues, posts and source files hold, shortened, with paths, models and times of our own.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.loose import of_servers
from ansible.module_utils.gpu_host.loose.piece import Piece
from ansible.module_utils.gpu_server import arguments, detection, engines, gather
from ansible.module_utils.gpu_server.log import log_reader, log_source

from .host_evidence import Host

NOW = 1_795_970_000.0  # 2026-11-29 16:33:20 UTC

# A start of 1.1.0rc3 that somebody posted, and the two ranks' form of the prefix from lines of 1.1.0rc2.
TENSORRT_LLM = """\
[TensorRT-LLM] TensorRT-LLM version: 1.1.0rc3
[11/29/2026-16:20:04] [TRT-LLM] [I] Using LLM with PyTorch backend
[11/29/2026-16:20:04] [TRT-LLM] [I] Set nccl_plugin to None.
rank 0 using MpiPoolSession to spawn MPI processes
[11/29/2026-16:20:06] [TRT-LLM] [I] Generating a new HMAC key for server proxy_request_queue
[TensorRT-LLM] TensorRT-LLM version: 1.1.0rc3
[TensorRT-LLM][INFO] Refreshed the MPI local session
[TensorRT-LLM][INFO] Rank 1 is using GPU 1
[11/29/2026-16:20:20] [TRT-LLM] [RANK 0] [I] Prefetching /srv/m/model-00004-of-00014.safetensors to memory...
[11/29/2026-16:20:21] [TRT-LLM] [RANK 0] [I] Use 63.32 GB for model weights.
Loading safetensors weights in parallel: 100%|##########| 15/15 [00:00<00:00, 81.92it/s]
Loading weights: 100%|##########| 801/801 [00:46<00:00, 17.29it/s]
Model init total -- 49.14s
[11/29/2026-16:21:09] [TRT-LLM] [RANK 0] [I] Using Sampler: TorchSampler
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224).
[11/29/2026-16:21:10] [TRT-LLM] [RANK 0] [I] [Autotuner] Autotuning process starts ...
[11/29/2026-16:21:37] [TRT-LLM] [RANK 1] [I] Creating CUDA graph instances for 11 batch sizes.
[11/29/2026-16:21:47] [TRT-LLM] [RANK 0] [I] Run generation only CUDA graph warmup for batch size=56, draft_len=0
[11/29/2026-16:21:57] [TRT-LLM] [RANK 0] [I] Setting PyTorch memory fraction to 0.59 (71.6 GiB)
"""
TENSORRT_LLM_SERVES = """\
INFO:     Started server process [41]
INFO:     Waiting for application startup.
INFO:     Application startup complete.
INFO:     Uvicorn running on http://0.0.0.0:8355 (Press CTRL+C to quit)
INFO:     127.0.0.1:48632 - "POST /v1/chat/completions HTTP/1.1" 200 OK
"""
# _torch/pyexecutor/py_executor.py, where print_iter_log is set.
ITERATION = (
    "[11/29/2026-16:33:10] [TRT-LLM] [I] [_torch][RANK 0] iter = 2, global_rank = 0, rank = 0, num_scheduled_requests = 3, "
    "kv_cache_util = 0.100, currank_total_requests = 1/1, host_step_time = 5.0ms, prev_device_step_time = 4.1ms, "
    "timestamp = 2026-11-29 16:33:10, states = {'num_ctx_requests': 1, 'num_generation_tokens': 2}\n"
)

# llama.cpp: the forms of April to July 2025 (issue 13085, pull request 14363), and those of builds since May 2026.
LLAMACPP_2025 = """\
ggml_cuda_init: found 2 CUDA devices:
  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes
build: 5172 (eb1776b1) with cc (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0 for x86_64-linux-gnu
system_info: n_threads = 40 (n_threads_batch = 40) / 96 | CUDA : ARCHS = 860 | USE_GRAPHS = 1 | PEER_MAX_BATCH_SIZE = 128
main: HTTP server is listening, hostname: 127.0.0.1, port: 9009, http threads: 95
main: loading model
srv    load_model: loading model '/srv/m.gguf'
llama_model_loader: loaded meta data with 44 key-value pairs and 363 tensors from /srv/m.gguf (version GGUF V3 (latest))
load_tensors: loading model tensors, this can take a while... (mmap = false)
load_tensors: offloaded 41/41 layers to GPU
llama_context: constructing llama_context
llama_kv_cache_unified:      CUDA0 KV buffer size =  5120.00 MiB
common_init_from_params: warming up the model with an empty run - please wait ... (--no-warmup to disable)
srv          init: initializing slots, n_slots = 1
slot         init: id  0 | task -1 | new slot n_ctx_slot = 65536
main: model loaded
main: server is listening on http://127.0.0.1:9009 - starting the main loop
srv  update_slots: all slots are idle
srv  log_server_r: request: GET /health 127.0.0.1 200
srv  log_server_r: request: POST /v1/completions 127.0.0.1 200
"""
LLAMACPP_2026 = """\
0.00.250.602 I log_info: verbosity = 3 (adjust with the `-lv N` CLI arg)
0.00.250.606 I device_info:
0.00.388.562 I   - CUDA0   : NVIDIA GeForce RTX 2080 Ti (10817 MiB, 10650 MiB free)
0.00.520.868 I srv          init: using 11 threads for HTTP server
0.00.521.818 I srv  llama_server: loading model
0.00.521.889 I common_init_result: fitting params to device memory ...
0.00.930.739 I common_init_from_params: warming up the model with an empty run - please wait ... (--no-warmup to disable)
0.00.976.929 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 16384, kv_unified = 'true'
"""
LLAMACPP_2026_READY = """\
0.01.010.233 I srv  llama_server: model loaded
0.01.010.236 I srv  llama_server: listening on http://127.0.0.1:8080
"""

# LMDeploy: --log-level INFO of 0.16, from serve/core/async_engine.py and pytorch/engine/executor/.
LMDEPLOY_INFO = """\
2026-11-29 16:20:00,537 - lmdeploy - INFO - async_engine.py:130 - input backend=pytorch, backend_config=PytorchEngineConfig(tp=2)
2026-11-29 16:20:01,537 - lmdeploy - INFO - __init__.py:101 - Build <ray> executor.
2026-11-29 16:20:02,537 - lmdeploy - INFO - ray_executor.py:229 - Init ray cluster.
2026-11-29 16:20:05,537 - lmdeploy - INFO - ray_executor.py:270 - Init distributed process group.
2026-11-29 16:20:09,537 - lmdeploy - INFO - base.py:450 - Building Model.
Loading weights from safetensors: 40%|####      | 2/5 [00:06<00:09,  3.32s/it]
"""
LMDEPLOY_REST = """\
2026-11-29 16:20:26,537 - lmdeploy - INFO - base.py:452 - Updating configs.
2026-11-29 16:20:27,537 - lmdeploy - INFO - base.py:466 - Warming up model.
HINT:    Please open \x1b[93m\x1b[1mhttp://0.0.0.0:23333\x1b[0m in a browser for detailed api usage!!!
"""
LMDEPLOY_SERVES = """\
INFO:     Started server process [3602229]
INFO:     Waiting for application startup.
INFO:     Application startup complete.
INFO:     Uvicorn running on http://0.0.0.0:23333 (Press CTRL+C to quit)
INFO:     127.0.0.1:48632 - "POST /v1/completions HTTP/1.1" 200 OK
"""


def read(text: str, engine: str | None = None) -> dict[str, Any]:
    return log_reader.read_log(text, NOW, 0, engines.ENGINES[engine] if engine else None)


def names(log: dict[str, Any]) -> list[str]:
    return [phase["name"] for phase in log["phases"]]


def test_a_start_of_tensorrt_llm() -> None:
    log = read(TENSORRT_LLM)
    assert (log["engine"], log["ready"], log["fatal"]) == ("tensorrt_llm", False, None)
    assert names(log) == [
        "arguments", "engine", "distributed", "weights", "kv_cache", "autotune", "graphs", "engine_ready",
    ]  # fmt: skip
    assert log["phases"][0]["at"] == NOW - 796  # the month stands first
    served = read(TENSORRT_LLM + TENSORRT_LLM_SERVES)
    assert (served["ready"], served["phase"], served["requests"]["ok"]) == (True, "ready", 1)


def test_its_iterations_say_how_many_requests_run_and_no_rate() -> None:
    decode = read(TENSORRT_LLM + TENSORRT_LLM_SERVES + ITERATION * 6)["decode"]
    assert (decode["running"], decode["queue"], decode["tokens_per_s"], decode["age_s"]) == (3, None, None, 10.0)
    assert (decode["lines"], decode["median_tokens_per_s"], decode["saturated"]) == (6, None, False)


@pytest.mark.parametrize(
    ("text", "ready", "phases", "context"),
    [
        (LLAMACPP_2025, True, ["arguments", "weights", "kv_cache", "warm_up", "scheduler", "ready"], 65536),
        (LLAMACPP_2026, False, ["arguments", "weights", "warm_up", "scheduler"], 16384),
        (LLAMACPP_2026 + LLAMACPP_2026_READY, True, ["arguments", "weights", "warm_up", "scheduler", "ready"], 16384),
        ("system_info: n_threads = 4\nmain: loading model\nmain: HTTP server is listening, hostname: ::\n", False,
         ["arguments", "weights"], None),
        ("0.00.1 I srv  llama_server: starting server in router mode. models will be automatically loaded on-demand\n",
         True, ["ready"], None),
    ],
)  # fmt: skip
def test_starts_of_llamacpp(text: str, ready: bool, phases: list[str], context: int | None) -> None:
    log = read(text)
    assert (log["engine"], log["ready"], log["fatal"], log["context_length"]) == ("llamacpp", ready, None, context)
    assert names(log) == phases


def test_the_requests_of_llamacpp_are_read_where_it_logs_them() -> None:
    assert read(LLAMACPP_2025)["requests"]["ok"] == 1
    failed = read(LLAMACPP_2025 + "srv  log_server_r: done request: POST /v1/chat/completions 10.0.0.7 500\n")
    assert (failed["requests"]["failed"], failed["requests"]["last_code"]) == (1, 500)


def test_a_start_of_lmdeploy() -> None:
    log = read(LMDEPLOY_INFO)
    assert (log["engine"], names(log)) == ("lmdeploy", ["arguments", "engine", "distributed", "weights"])
    assert (log["progress"]["done"], log["progress"]["total"], log["progress"]["left_s"]) == (2, 5, 9)
    assert names(read(LMDEPLOY_INFO + LMDEPLOY_REST))[-3:] == ["kv_cache", "graphs", "engine_ready"]
    served = read(LMDEPLOY_INFO + LMDEPLOY_REST + LMDEPLOY_SERVES)
    assert (served["ready"], served["phase"], served["requests"]["ok"]) == (True, "ready", 1)


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-29 16:33:10 DP0] Avg thr (in/out): 512.1 / 88.5 tokens/s, Server (succeeded/failed/routed/waiting): "
        "4 / 0 / 6 / 0, Engine (running/waiting): 5 / 2, KV cache: 99.5%, Prefix cache hit rate: 1.0%, ",
        "[2026-11-29 16:33:10 DP0] Avg prompt throughput: 512.1 tokens/s, Avg generation throughput: 88.5 tokens/s, "
        "Finished: 4 reqs, Unfinished: 7 reqs, Running: 5 reqs, Waiting: 2 reqs, GPU KV cache usage: 99.5%",
    ],
)
def test_both_forms_of_lmdeploys_statistics(line: str) -> None:
    decode = read(LMDEPLOY_SERVES + (line + "\n") * 5, "lmdeploy")["decode"]
    assert (decode["running"], decode["queue"], decode["usage"], decode["age_s"]) == (5, 2, 0.995, 10.0)
    assert (decode["median_tokens_per_s"], decode["saturated"]) == (88.5, True)


@pytest.mark.parametrize(
    ("engine", "text", "kind"),
    [
        ("llamacpp", "error: invalid argument: --nope\n", "unrecognized_arguments"),
        ("llamacpp", 'error while handling argument "-ngl": stoi\n\nusage:\n', "unrecognized_arguments"),
        (
            "llamacpp",
            "srv          start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080\n"
            "srv  llama_server: exiting due to HTTP server error\n",
            "port_in_use",
        ),
        (
            "llamacpp",
            "llama_model_load: error loading model: unknown model architecture: 'newer'\n"
            "srv    load_model: failed to load model, '/srv/m.gguf'\nsrv  llama_server: exiting due to model loading error\n",
            "model_type_unknown",
        ),
        (
            "llamacpp",
            "gguf_init_from_file: failed to open GGUF file '/srv/m.gguf' (No such file or directory)\n"
            "llama_model_load: error loading model: llama_model_loader: failed to load model from /srv/m.gguf\n",
            "model_not_found",
        ),
        (
            "llamacpp",
            "gguf_init_from_reader: invalid magic characters: 'vers', expected 'GGUF'\n"
            "main: exiting due to model loading error\n",
            "weights_unreadable",
        ),
        # issue 20431
        (
            "llamacpp",
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 144817.04 MiB on device 0: cudaMalloc failed: out of "
            "memory\nllama_model_load: error loading model: unable to allocate CUDA0 buffer\n",
            "out_of_memory",
        ),
        (
            "llamacpp",
            "CUDA error: unspecified launch failure\n  current device: 1, in function ggml_backend_cuda_synchronize\n",
            "engine_dead",
        ),
        (
            "tensorrt_llm",
            "Usage: trtllm-serve serve [OPTIONS] MODEL\n\nError: No such option: --nope\n",
            "unrecognized_arguments",
        ),
        (
            "tensorrt_llm",
            "RuntimeError: Failed to bind socket to localhost:8000: [Errno 98] Address already in use\n",
            "port_in_use",
        ),
        # issue 5872
        (
            "tensorrt_llm",
            "[11/29/2026-16:20:15] [TRT-LLM] [RANK 1] [E] Failed to initialize executor on rank 1: Executor creation failed "
            "due to insufficient GPU memory.\n",
            "out_of_memory",
        ),
        (
            "tensorrt_llm",
            "[11/29/2026-16:20:15] [TRT-LLM] [E] Executor worker died during initialization.\n"
            "ValueError: Unknown architecture for AutoModelForCausalLM: NewerForCausalLM\n",
            "model_type_unknown",
        ),
        ("tensorrt_llm", "RuntimeError: Executor worker returned error\n", "engine_dead"),
        ("tensorrt_llm", "ValueError: No GPU devices found on the node\n", "no_cuda"),
        (
            "lmdeploy",
            "lmdeploy serve api_server: error: unrecognized arguments: --nope\n",
            "unrecognized_arguments",
        ),
        # issue 2381
        (
            "lmdeploy",
            "RuntimeError: [TM][ERROR] CUDA runtime error: out of memory /lmdeploy/src/turbomind/utils/memory_utils.cu:32\n",
            "out_of_memory",
        ),
        ("lmdeploy", "RuntimeError: No enough gpu memory for kv cache.\n", "memory_pool"),
        ("lmdeploy", "ValueError: Port 23333 is not available\n", "port_in_use"),
        (
            "lmdeploy",
            "2026-11-29 16:20:00,537 - lmdeploy - ERROR - launch_server.py:178 - Server process 77 exited with code 1\n",
            "child_failed",
        ),
    ],
)
def test_faults_in_the_engines_own_words(engine: str, text: str, kind: str) -> None:
    log = read(text, engine)
    assert (log["ready"], log["fatal"]["kind"]) == (False, kind)


def test_what_to_do_where_memory_ran_out_is_said_in_the_engines_own_flags() -> None:
    """`--mem-fraction-static` is SGLang's: no other engine takes it."""
    told = {}
    for name, engine in engines.ENGINES.items():
        weights = {phase.name: phase for phase in engine.phases}["weights"].pattern.pattern
        line = "Loading weights" if re.search(weights, "Loading weights") else None
        lines = {"sglang": "Load weight begin", "vllm": "Starting to load model", "llamacpp": "main: loading model"}
        line = lines.get(name) or ("Building Model." if name == "lmdeploy" else line)
        log = read("%s\nCUDA out of memory\n" % line, name)
        assert (log["fatal"]["kind"], log["fatal"]["phase"]) == ("out_of_memory", "weights")
        told[name] = log["fatal"]["advice"]
    assert [name for name, advice in told.items() if "--mem-fraction-static" in advice] == ["sglang"]


def test_a_llamacpp_without_a_gpu_serves_and_says_so() -> None:
    log = read("ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\n" + LLAMACPP_2026_READY)
    assert (log["ready"], log["fatal"]) == (True, None)
    assert [(fault["kind"], fault["fatal"]) for fault in log["faults"]] == [("no_cuda", False)]


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("/usr/bin/python3 /usr/local/bin/trtllm-serve serve /srv/m --tp_size 8", "tensorrt_llm"),
        ("/usr/bin/python3 /usr/local/bin/trtllm-serve /srv/m --host 0.0.0.0", "tensorrt_llm"),
        ("/usr/bin/python3 /usr/local/bin/trtllm-serve disaggregated -c /srv/c.yaml", None),
        ("/app/llama-server -m /srv/m.gguf -ngl 99", "llamacpp"),
        ("llama serve -hf org/m-GGUF", "llamacpp"),
        ("llama-server", "llamacpp"),
        ("llama-server-wrapper -m x", None),
        ("python3 watch.py llama-server", None),
        ("/opt/l/bin/python /opt/l/bin/lmdeploy serve api_server org/m --tp 2", "lmdeploy"),
        ("/opt/l/bin/python /opt/l/bin/lmdeploy serve proxy", None),
    ],
)
def test_they_are_known_by_their_command(command: str, engine: str | None) -> None:
    found = engines.find_engine_of_command(command.split())
    assert (found.name if found else None) == engine


@pytest.mark.parametrize(
    ("engine", "line", "settings", "ranks", "model", "served"),
    [
        (
            "tensorrt_llm",
            "trtllm-serve serve /srv/m --tensor_parallel_size 8 --max_seq_len 4096 --port 9",
            {"tensor-parallel-size": "8", "max-seq-len": "4096", "port": "9"},
            8, "/srv/m", "/srv/m",
        ),
        ("tensorrt_llm", "/usr/bin/trtllm-serve org/m --tp_size 2", {"tp-size": "2"}, 2, "org/m", "org/m"),
        (
            "llamacpp",
            "/app/llama-server -m /srv/m.gguf -a tiny -c 8192 -ngl 99 -sm row -ts 3,1 --port 8081",
            {"model": "/srv/m.gguf", "alias": "tiny", "ctx-size": "8192", "n-gpu-layers": "99", "split-mode": "row",
             "tensor-split": "3,1", "port": "8081"},
            1, "/srv/m.gguf", "tiny",
        ),
        ("llamacpp", "llama-server -hf org/m:Q4_K_M", {"hf-repo": "org/m:Q4_K_M"}, 1, "org/m:Q4_K_M", "org/m:Q4_K_M"),
        (
            "lmdeploy",
            "lmdeploy serve api_server /srv/m --server-port 9 --model_name tiny --tp 4 --session-len 4096",
            {"server-port": "9", "model-name": "tiny", "tp": "4", "session-len": "4096"},
            4, "/srv/m", "tiny",
        ),
    ],
)  # fmt: skip
def test_their_command_lines(
    engine: str, line: str, settings: dict[str, str], ranks: int, model: str, served: str
) -> None:
    words, entry = line.split(), engines.ENGINES[engine]
    found = engines.find_settings(entry, words)
    assert found == settings
    assert engines.find_tensor_parallel(entry, found) == ranks
    assert (engines.find_model_path(engine, words), engines.find_served_name(engine, words)) == (model, served)


# As common/arg.cpp of llama.cpp sets them: at the left edge, and the long name apart from a short one.
LLAMACPP_HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-c,    --ctx-size N                     size of the prompt context (default: 0, 0 = loaded from model)
                                        (env: LLAMA_ARG_CTX_SIZE)
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers to store in VRAM, either an exact number, 'auto', or 'all'
-sm,   --split-mode {none,layer,row,tensor}
                                        how to split the model across multiple GPUs, one of:
                                        - none: use one GPU only
--host HOST                             ip address to listen, or bind to an UNIX socket (default: 127.0.0.1)
"""


def test_the_help_of_llamacpp() -> None:
    options = arguments.parse_options(LLAMACPP_HELP)
    assert options == {
        "--help": None, "--usage": None, "--ctx-size": None, "--gpu-layers": None, "--n-gpu-layers": None,
        "--split-mode": ["none", "layer", "row", "tensor"], "--host": None,
    }  # fmt: skip
    told = arguments.find_problems(
        {"ctx_size": 8192, "split-mode": "graph", "ctx-siz": 1}, options, engines.ENGINES["llamacpp"]
    )
    assert [(one["argument"], one["successor"]) for one in told] == [
        ("--split-mode", None),
        ("--ctx-siz", "--ctx-size"),
    ]


def test_the_renamed_options_of_tensorrt_llm() -> None:
    text = "Options:\n  --tensor_parallel_size, --tp_size INTEGER  Tensor parallelism size.\n  --config TEXT  A file.\n"
    told = arguments.find_problems(
        {"tp_size": 8, "extra_llm_api_options": "/c.yaml"},
        arguments.parse_options(text),
        engines.ENGINES["tensorrt_llm"],
    )
    assert [(one["argument"], one["successor"]) for one in told] == [("--extra_llm_api_options", "--config")]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (TENSORRT_LLM, "log of an inference server, 19 lines"),
        (LLAMACPP_2025, "log of an inference server, 20 lines"),
        (LLAMACPP_2026_READY, "log of an inference server, 2 lines"),
        (LMDEPLOY_INFO, "log of an inference server, 6 lines"),
        ("# HELP llamacpp:requests_processing Number\nllamacpp:requests_processing 2\n", "metrics of a server"),
        ('{"object": "list", "data": [{"id": "m", "owned_by": "tensorrt_llm"}]}', "list of models, /v1/models"),
    ],
)
def test_what_is_pasted_of_them_is_recognised(text: str, what: str) -> None:
    found = of_servers.recognise_piece(Piece("pasted", text.encode()))
    assert found is not None and found.what == what


MODELS = {"object": "list", "data": [{"id": "tiny", "owned_by": "x", "created": 1795960000}]}
SERVERS = {
    "llamacpp": (
        "llama-server", "/opt/l/bin/llama-server\0-m\0/srv/m.gguf\0", "LLAMA_ARG_PORT=8099\0LLAMA_ARG_HOST=0.0.0.0\0LLAMA_API_KEY=k\0GGML_CUDA_P2P=1\0", 8099,
        LLAMACPP_2026 + LLAMACPP_2026_READY,
        {"/props": json.dumps({"build_info": "b9752-abc", "model_path": "/srv/m.gguf"}),
         "/metrics": "llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n"},
        "b9752-abc", {"running": 2.0, "queue": 1.0}, None,
    ),
    "tensorrt_llm": (
        "trtllm-serve", "/opt/t/bin/python3\0/opt/t/bin/trtllm-serve\0serve\0/srv/m\0--tp_size\0002\0", "TLLM_LOG_LEVEL=INFO\0", 8000,
        TENSORRT_LLM + TENSORRT_LLM_SERVES,
        {"/version": json.dumps({"version": "1.2.1"}),
         "/prometheus/metrics": "trtllm_num_requests_running 0.0\ntrtllm_num_requests_waiting 0.0\n"},
        "1.2.1", {"running": 0.0, "queue": 0.0}, {"tensorrt-llm": "1.2.1"},
    ),
    "lmdeploy": (
        "lmdeploy", "/opt/t/bin/python3\0/opt/t/bin/lmdeploy\0serve\0api_server\0/srv/m\0--server-port\0009000\0--api-keys\0a\0b\0", "TM_LOG_LEVEL=INFO\0", 9000,
        LMDEPLOY_INFO + LMDEPLOY_REST + LMDEPLOY_SERVES,
        {"/metrics": 'lmdeploy:num_requests_running{engine="0"} 1.0\nlmdeploy:num_requests_waiting{engine="0"} 0.0\n'},
        None, {"running": 1.0, "queue": 0.0}, {"lmdeploy": "0.18.0"},
    ),
}  # fmt: skip


def serve(engine: str, health: int, log: str | None = None) -> dict[str, Any]:
    """The facts of a host on which this engine runs, whose /health answers so."""
    name, words, environment, port, full_log, answers, _version, _metrics, packages = SERVERS[engine]
    host = Host(NOW).directory("/proc", {"7": {"kind": "dir"}}).file("/proc/stat", "btime %d\n" % (NOW - 9000))
    host.file("/proc/7/stat", "7 (%s) S 1 7 7 0 -1 4194560 0 0 0 0 100 10 0 0 20 0 9 0 1000 1 1 1" % name)
    host.file("/proc/7/cmdline", words).file("/proc/7/environ", "HOME=/root\0" + environment)
    host.file("/proc/7/cgroup", "0::/user.slice/session-1.scope\n").command("date +%z", "+0000\n")
    host.directory("/opt/t/lib", {"python3.12": {"kind": "dir"}})
    installed = {
        "%s-%s.dist-info" % (one.replace("-", "_"), version): {"kind": "dir"}
        for one, version in (packages or {}).items()
    }
    host.directory("/opt/t/lib/python3.12/site-packages", installed)
    host.directory("/proc/7/fd", {"2": {"kind": "link", "target": "/srv/log"}}).directory(
        "/srv", {"log": {"modified": NOW}}
    )
    host.file("/srv/log", full_log if log is None else log)
    base = "http://127.0.0.1:%d" % port
    for path, text in {"/v1/models": json.dumps(MODELS), **answers}.items():
        host.add({"fetch": base + path, "method": "GET", "status": "ok", "code": 200, "text": text})
    host.add({"fetch": base + "/health", "method": "GET", "status": "ok", "code": health, "text": "{}"})
    facts = gather.gather(host, {"generate": "never"}, Errors("server"))
    assert facts is not None and facts["engine"] == engine, facts and facts["why"]
    return facts


@pytest.mark.parametrize("engine", SERVERS)
def test_a_server_that_serves(engine: str) -> None:
    _name, _words, environment, port, _log, _answers, version, metrics, packages = SERVERS[engine]
    facts = serve(engine, 200)
    assert (facts["state"], facts["port"]["port"], facts["model"]) == ("ready", port, "tiny")
    assert (facts["api"]["version"], facts["packages"]) == (version, packages)
    assert {name: facts["api"]["metrics"][name] for name in metrics} == metrics
    assert facts["busy"] is bool(metrics["running"])
    allowed = {name for name in re.findall(r"(\w+)=", environment) if "KEY" not in name}
    assert set(facts["environment"]) == {"HOME", *allowed}
    assert facts["ranks"] == [] and facts["ranks_missing"] is None  # its titles tell none, so none is missed
    assert facts["key_set"] is (engine == "lmdeploy")


def test_a_llamacpp_that_loads_answers_503_and_starts() -> None:
    facts = serve("llamacpp", 503, LLAMACPP_2026)
    assert (facts["state"], facts["why"]) == ("starting", "phase scheduler")


@pytest.mark.parametrize(
    ("process", "seen"),
    [
        ("/app/llama-server", "yes"),
        ("trtllm-serve", "yes"),
        ("lmdeploy", "yes"),
        ("ollama", "no"),
        ("llama-bench", "no"),
    ],
)
def test_a_process_on_a_gpu_says_that_one_is_there(process: str, seen: str) -> None:
    devices = {"0000:01:00.0": {"processes": [{"pid": 7, "type": "C", "name": process}]}}
    assert detection.sees_server({"gpus": {"devices": devices}}, "auto") == seen


def test_every_start_is_found_by_grep_as_well() -> None:
    """grep -E of a log that is too long to read takes the patterns as Python writes them."""
    for engine in engines.ENGINES.values():
        assert not re.search(r"\(\?|\\[dwsS]", engine.starts.pattern), engine.name
        assert engine.starts.pattern in " ".join(log_source.starts_command("/srv/log", engine))
