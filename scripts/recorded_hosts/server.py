# ruff: noqa: E501  (the log lines are as long as SGLang writes them)
"""An inference server on a model.

SGLang with eight ranks, as the field story has it once its settings are right, idle.
"""

from __future__ import annotations

import json
import time

from ansible.module_utils.gpu_server import gpu_load, installed, nccl_job, units
from ansible.module_utils.gpu_server.gather import ZONE_COMMAND

from .tree import BOOTED_AT, TAKEN_AT, HostModel

PID, FIRST_RANK, RANKS, PORT = 400, 412, 8, 8000
STARTED_AT = TAKEN_AT - 7200.0
BASE = "http://127.0.0.1:%d" % PORT
LOG = "/root/sglang.log"
COMMAND = (
    "/opt/sglang/bin/python3 -m sglang.launch_server --model lukealonso/GLM-5-NVFP4 --served-model-name glm-5 --reasoning-parser glm45 "
    "--tool-call-parser glm47 --trust-remote-code --tp 8 --mem-fraction-static 0.92 --max-running-requests 64 --kv-cache-dtype auto "
    "--quantization modelopt_fp4 --attention-backend flashinfer --fp8-gemm-backend cutlass --dsa-decode-backend trtllm "
    "--dsa-prefill-backend trtllm --moe-runner-backend flashinfer_cutlass --host 127.0.0.1 --port 8000"
)
ARGUMENTS = COMMAND.split()
ENVIRONMENT = {
    "NCCL_P2P_LEVEL": "SYS", "NCCL_MIN_CTAS": "8", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8", "SAFETENSORS_FAST_GPU": "1", "CUDA_HOME": "/usr/local/cuda-12.8",
    "HOME": "/root", "PATH": "/opt/sglang/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONUNBUFFERED": "1",
}  # fmt: skip
MEMORY_MIB = (94857, 94873, 94873, 94873, 94873, 94873, 94873, 94809)
PACKAGES = (
    "sglang-0.5.23", "sgl_kernel-0.4.6", "torch-2.11.0", "transformers-5.2.0", "flashinfer_python-0.6.9", "nvidia_nccl_cu12-2.28.9", "triton-3.6.0",
)  # fmt: skip


def install(model: HostModel, addresses: list[str]) -> None:
    """The server and everything that shows it."""
    _process(model, PID, 1, name="python3", words="\0".join(ARGUMENTS) + "\0", cpu_s=812.4)
    for rank in range(RANKS):
        _process(
            model,
            FIRST_RANK + rank,
            PID,
            name="sglang::schedul",
            words="sglang::scheduler_TP%d\0" % rank,
            cpu_s=5310.0 + rank,
        )
    _process(model, FIRST_RANK + RANKS, PID, name="sglang::detoken", words="sglang::detokenizer\0", cpu_s=40.2)
    model.file("/proc/%d/environ" % PID, "\0".join("%s=%s" % item for item in ENVIRONMENT.items()) + "\0", mode=0o400)
    model.file("/proc/%d/limits" % PID, model.read("/proc/1/limits").data or b"")
    for number in (1, 2):
        model.link("/proc/%d/fd/%d" % (PID, number), LOG)
    model.file("/proc/net/tcp", _sockets(("0100007F", PORT)))
    model.file("/proc/net/tcp6", _sockets())
    model.file(LOG, log(), modified=TAKEN_AT - 600)
    rows = "".join(
        "%08X:%s, %d, %d, 97887, 0, %.2f, 600.00, P0\n" % (0, a[5:].upper(), n, MEMORY_MIB[n], 80.97 + n / 2)
        for n, a in enumerate(addresses)
    )
    apps = "".join(
        "%d, %08X:%s, %d\n" % (FIRST_RANK + n, 0, a[5:].upper(), MEMORY_MIB[n] - 15) for n, a in enumerate(addresses)
    )
    model.command(gpu_load.GPUS_COMMAND, rows)
    model.command(gpu_load.APPS_COMMAND, apps)
    model.command(ZONE_COMMAND, "+0000\n")
    model.command(units.LIST_COMMAND, "")
    model.command(
        installed.locks_command("/root"),
        "",
        rc=1,
        stderr="find: '/root/.cache/torch_extensions': No such file or directory\n",
    )
    for name in PACKAGES:
        model.file("/opt/sglang/lib/python3.12/site-packages/%s.dist-info/METADATA" % name, "")
    key = ",".join(str(number) for number in range(RANKS))
    pairs = {"%d->%d" % (a, b): True for a in range(RANKS) for b in range(RANKS)}
    model.file(
        "/root/.cache/sglang/gpu_p2p_access_cache_for_%s.json" % key, json.dumps(pairs), modified=STARTED_AT + 30
    )
    for again in ((), ("again",)):  # a host that is asked a second time is one whose ranks differ
        model.command((nccl_job.COMMAND, "localhost:28028", *again), _ras())
    _answers(model)


def _ras() -> str:
    """What NCCL says of a job that goes on (the form is that of 2.28.9)."""
    head = "NCCL version 2.28.9 compiled with CUDA 13.0\nCUDA runtime version 13000, driver version 13000\n\n"
    head += "Job summary\n===========\n\n  Nodes  Processes         GPUs  Processes     GPUs\n"
    head += (
        "(total)   per node  per process    (total)  (total)\n      1          8            1          8        8\n\n"
    )
    table = "Communicators... (0.00s)\n=============\n\n"
    table += "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
    table += "    #  in group  per comm  per node  per comm  in group\n"
    table += "    0         2         1         8         8         8   RUNNING      OK\n\n"
    return head + table + "Errors\n======\n\nWarnings\n========\n\n"


def _process(model: HostModel, pid: int, parent: int, *, name: str, words: str, cpu_s: float) -> None:
    base = "/proc/%d/" % pid
    started = int((STARTED_AT - BOOTED_AT) * 100)
    fields = [
        "S",
        parent,
        pid,
        pid,
        0,
        -1,
        4194560,
        90210,
        0,
        12,
        0,
        int(cpu_s * 80),
        int(cpu_s * 20),
        0,
        0,
        20,
        0,
        96,
        0,
        started,
        812345678,
        2345678,
    ]
    model.file(base + "stat", "%d (%s) %s\n" % (pid, name, " ".join(str(field) for field in fields + [0] * 28)))
    model.file(base + "cmdline", words)
    model.file(base + "status", "Name:\t%s\nState:\tS (sleeping)\nUid:\t0\t0\t0\t0\nVmRSS:\t 9876543 kB\n" % name)
    model.file(base + "wchan", "futex_wait_queue")
    model.file(base + "io", "rchar: 1\nwchar: 1\nread_bytes: 62280000000\nwrite_bytes: 4096\n", mode=0o400)
    model.file(base + "cgroup", "0::/\n")


def _sockets(*listening: tuple[str, int]) -> str:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "%4d: %s:%04X 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0000000000000000 100 0 0 10 0\n"
    return head + "".join(row % (number, address, port) for number, (address, port) in enumerate(listening))


def log() -> str:
    """A start of seven minutes and some work, ten minutes ago."""
    lines = []

    def say(after: float, text: str, rank: int | None = None) -> None:
        where = "" if rank is None else " TP%d" % rank
        lines.append("[%s%s] %s" % (time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(STARTED_AT + after)), where, text))

    say(
        20,
        "server_args=ServerArgs(model_path='lukealonso/GLM-5-NVFP4', tp_size=8, mem_fraction_static=0.92, host='127.0.0.1', port=8000)",
    )
    for rank in range(RANKS):
        say(35, "Init torch distributed begin.", rank)
    say(36, "sglang is using nccl==2.28.9", 0)
    for rank in range(RANKS):
        following = (rank + 1) % RANKS
        for channel in range(8):
            lines.append(
                "ct102:%d:%d [%d] NCCL INFO Channel %02d/0 : %d[%d] -> %d[%d] via P2P/CUMEM"
                % (412 + rank, 412 + rank, rank, channel, rank, rank, following, following)
            )
    say(
        40,
        "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence this warning, specify disable_custom_all_reduce=True explicitly.",
        0,
    )
    say(41, "Load weight begin. avail mem=94.07 GB", 0)
    lines.append(
        "\r".join(
            "Loading safetensors checkpoint shards: %3d%% Completed | %d/83 [%02d:%02d<%02d:%02d,  3.50s/it]"
            % (100 * n // 83, n, n * 7 // 120, n * 7 // 2 % 60, (83 - n) * 7 // 120, (83 - n) * 7 // 2 % 60)
            for n in range(84)
        )
    )
    say(
        334,
        "Load weight end. type=GlmMoeDsaForCausalLM, dtype=torch.bfloat16, avail mem=31.90 GB, mem usage=62.17 GB.",
        0,
    )
    say(335, "Using KV cache dtype: torch.bfloat16", 0)
    say(336, "KV Cache is allocated. #tokens: 341504, KV size: 19.55 GB", 0)
    say(337, "Memory pool end. avail mem=7.10 GB", 0)
    say(338, "Running FlashInfer autotune with cache: /root/.cache/flashinfer/autotune", 0)
    say(380, "FlashInfer autotune completed.", 0)
    say(381, "Capture decode CUDA graph begin. This can take up to several minutes. avail mem=6.90 GB", 0)
    say(412, "Capture decode CUDA graph end. Time elapsed: 31.20 s. mem usage=1.22 GB. avail mem=5.68 GB.", 0)
    say(
        413,
        "max_total_num_tokens=341504, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=64, context_len=202752, available_gpu_mem=5.68 GB",
        0,
    )
    say(414, "INFO:     Application startup complete.")
    say(414, "INFO:     Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)")
    say(421, 'INFO:     127.0.0.1:58310 - "POST /generate HTTP/1.1" 200 OK')
    say(421, "The server is fired up and ready to roll!")
    for number in range(30):
        say(
            5400 + 40 * number,
            "Decode batch, #running-req: 17, #token: %d, token usage: 0.02, cuda graph: True, gen throughput (token/s): %.2f, #queue-req: 0"
            % (7808 + 680 * number, 166.48 + number % 5),
            0,
        )
    say(
        6600,
        "Decode batch, #running-req: 0, #token: 0, token usage: 0.00, cuda graph: True, gen throughput (token/s): 92.10, #queue-req: 0",
        0,
    )
    return "\n".join(lines) + "\n"


def _answers(model: HostModel) -> None:
    model.answer("GET", BASE + "/health", 200, "")
    entry = {
        "id": "glm-5",
        "object": "model",
        "created": int(TAKEN_AT),
        "owned_by": "sglang",
        "root": "glm-5",
        "parent": None,
        "max_model_len": 202752,
    }
    model.answer("GET", BASE + "/v1/models", 200, json.dumps({"object": "list", "data": [entry]}))
    information = {
        "model_path": "lukealonso/GLM-5-NVFP4",
        "tp_size": 8,
        "version": "0.5.23",
        "internal_states": [{"last_gen_throughput": 92.1}],
        "kv_events": None,
    }
    model.answer("GET", BASE + "/server_info", 200, json.dumps(information))
    model.answer("GET", BASE + "/metrics", 404, '{"detail":"Not Found"}')
    words = " Paris . The capital of Germany is Berlin . The capital of Italy is Rome . The capital of Spain is Madrid .".split()  # noqa: SIM905
    for number in (1, 2):
        events = [
            {
                "id": "cmpl",
                "choices": [
                    {
                        "index": 0,
                        "text": " " + word,
                        "logprobs": {"token_logprobs": [-0.25 - place / 64]},
                        "finish_reason": None,
                    }
                ],
            }
            for place, word in enumerate(words)
        ]
        text = "".join("data: %s\n\n" % json.dumps(event) for event in events) + "data: [DONE]\n\n"
        model.answer(
            "POST", BASE + "/v1/completions", 200, text, label="generation %d" % number, seconds=0.31, first_byte_s=0.09
        )
