"""Faults that servers report in their logs: what each means, and what to change.

Sources: the engines' own messages (SGLang 0.5.8 to 0.5.23, vLLM 0.20 to 0.32), PyTorch's and NCCL's; the direction of
the memory hints is from their use, not from their wording.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`fatal`: the server does not serve (any more).

    `direction`: what to do with --mem-fraction-static or its like, if anything. `general`: it says that something
    failed, not what: any other fault of the same log is the cause.
    """

    kind: str
    pattern: re.Pattern[str]
    fatal: bool
    meaning: str
    advice: str
    direction: str | None = None
    general: bool = False


def _fault(
    kind: str,
    pattern: str,
    fatal: bool,
    meaning: str,
    advice: str,
    *,
    direction: str | None = None,
    general: bool = False,
) -> Fault:
    return Fault(kind, re.compile(pattern), fatal, meaning, advice, direction, general)


# The first that matches a line names it: the particular before the general. What one engine alone reports may stand in
# its entry instead (engines/, `faults`).
FAULTS: tuple[Fault, ...] = (
    _fault(
        "memory_pool",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        True,
        "nothing is left for the KV cache after the weights: --mem-fraction-static must hold weights and KV cache "
        "together",
        "Raise --mem-fraction-static (0.02 to 0.1 more), or use more GPUs. Lowering it makes it worse.",
        direction="increase",
    ),
    _fault(
        "memory_pool",
        r"No available memory for the cache blocks|larger than the available KV cache memory|KV cache is needed, "
        r"which is larger",
        True,
        "nothing, or too little, is left for the KV cache after the weights",
        "Raise --gpu-memory-utilization, or lower --max-model-len.",
        direction="increase",
    ),
    _fault(
        "unrecognized_arguments",
        r"error: (?:unrecognized arguments?|argument [^:]+: (?:invalid choice|expected|invalid)|the following "
        r"arguments are required)"
        r"|^Error: (?:No such option|Invalid value for|Got unexpected extra argument|Option '?--[\w-]+'? requires)",
        True,
        "the installed engine does not know these arguments",
        "Compare them with the engine's --help; the role inference_server names successors.",
    ),
    _fault(
        "model_type_unknown",
        r"model type `?'?[\w.-]+'?`? but Transformers does not recognize|does not recognize this architecture"
        r"|Model architectures \[[^\]]*\] (?:are|is) not supported|has no (?:SGLang|vLLM) implementation",
        True,
        "the installed transformers or engine does not know this type of model",
        "Install a newer transformers (glm_moe_dsa: 5.2.0 knows it, 4.57.1 does not) and an engine that implements it.",
    ),
    _fault(
        "model_not_found",
        r"is not a local folder and is not a valid model identifier|RepositoryNotFoundError|Repository Not "
        r"Found|GatedRepoError"
        r"|LocalEntryNotFoundError|We couldn't connect to 'https?://|Repo id must (?:be in the form|use alphanumeric)",
        True,
        "the model is not on this host and cannot be downloaded",
        "Check the name, the path, HF_HOME, HF_TOKEN and the network.",
    ),
    _fault(
        "model_incomplete",
        r"Should have a `model_type` key in its config\.json|does not appear to have a file named"
        r"|no file named .*(?:safetensors|bin)\b.* found in directory",
        True,
        "the directory of the model lacks files that a model has",
        "Look into it: an interrupted download, or a directory above or below the model's own.",
    ),
    _fault(
        "weights_unreadable",
        r"SafetensorError|Error while deserializing header|PytorchStreamReader failed|UnpicklingError: invalid load "
        r"key",
        True,
        "a file of the weights is cut off or is none",
        "Compare the sizes with the hub's and download it anew; a file of some 130 bytes is a Git LFS pointer, not "
        "the weights.",
    ),
    _fault(
        "dependency_missing",
        r"Missing dependencies for serving|requires `?[\w-]{1,60}`?[^`]{0,60}[.:] ?(?:You can install it with)? ?`pip "
        r"install"
        r"|: No module named '?(?:sglang|vllm|transformers|torch)\b",
        True,
        "a package that the engine needs is not installed in its environment",
        "Install what the line names into the server's virtual environment (inference_server_packages); "
        "for transformers: transformers[serving].",
    ),
    _fault(
        "no_cuda",
        r"Torch not compiled with CUDA enabled|Found no NVIDIA driver on your system|No CUDA GPUs are available|CUDA "
        r"driver version is insufficient",
        True,
        "PyTorch in the server's environment cannot use a GPU: a build without CUDA, no driver, or one that is too old",
        "Validate the host (tag driver); then look at torch.version.cuda in the server's virtual environment.",
    ),
    _fault(
        "port_in_use",
        r"[Aa]ddress already in use|\[Errno 98\]|port \d+ is (?:already )?(?:in use|not available)",
        True,
        "another process listens on this port",
        "Find it with ss -ltnp and stop it, or choose another port.",
    ),
    _fault(
        "shm_full",
        r"failed to extend /dev/shm|No space left on device.*(?:/dev/shm|shm)|(?:/dev/shm|shm).*No space left on "
        r"device",
        True,
        "the shared memory in /dev/shm is too small for NCCL",
        "Give the host or container a larger /dev/shm (1 GiB or more).",
    ),
    _fault(
        "no_kernel_image",
        r"no kernel image is available for execution|Unsupported (?:GPU )?architecture",
        True,
        "a library was built without kernels for this GPU's architecture",
        "Install builds for it (SM120: torch cu128 or newer), or choose another backend.",
    ),
    _fault(
        "peer_access",
        r"peer access is not supported between|cudaErrorPeerAccessUnsupported|CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        True,
        "the engine's own all-reduce asked for peer access that these GPUs do not have",
        "Start the server with --disable-custom-all-reduce; NCCL then copies through host memory. Where peer-to-peer "
        "is meant to work, validate the host: p2p_granted and p2p_usable name the layer that refuses it.",
    ),
    _fault(
        "illegal_access",
        r"an illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS",
        True,
        "a kernel accessed memory that is not its own: a fault of a kernel, of NCCL's version, or wrong data over "
        "peer-to-peer",
        "Prove peer-to-peer with the probe (a collective of 512 KiB or more), then try another attention or MoE "
        "backend.",
    ),
    _fault(
        "nan",
        r"NaN in the logits|NaN happened|Detected errors during sampling",
        True,
        "the model computes NaN: nothing that it answers can be trusted",
        "Choose another attention backend (SM120: --dsa-decode-backend trtllm, before 0.5.15 --nsa-decode-backend "
        "trtllm) or KV cache type bfloat16.",
    ),
    _fault(
        "collective_timeout",
        r"Watchdog caught collective operation timeout|NCCL (?:watchdog|communicator) "
        r".*(?:timeout|abort)|ncclRemoteError|ncclSystemError",
        True,
        "a collective never ended: a rank is gone or hangs, or peer-to-peer does not work",
        "Look for the rank that is missing; prove peer-to-peer with the probe.",
    ),
    _fault(
        "watchdog",
        r"[Ss]cheduler watchdog timeout|Detokenizer watchdog timeout",
        True,
        "a scheduler did not finish a batch in the watchdog's time; all green at the GPUs points to the "
        "configuration, not to the hardware",
        "Take recent features out one by one (hierarchical cache with speculative decoding is known to deadlock); "
        "py-spy dump shows where it waits.",
    ),
    _fault(
        "out_of_memory",
        r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation",
        True,
        "GPU memory ran out",
        "Lower --mem-fraction-static.",
        direction="decrease",
    ),
    _fault(
        "worker_died",
        r"Worker proc \S+ died unexpectedly|child process .*died|WorkerProc (?:initialization )?failed|Rank \d+ "
        r"scheduler (?:is dead|died during initialization)"
        r"|Scheduler or DataParallelController .* terminated with",
        True,
        "a worker process ended by itself (a signal, the kernel's OOM killer)",
        "Look into the kernel log (OOM killer, Xid); exit code -9 is the OOM killer or kill -9, -4 an illegal "
        "instruction.",
    ),
    _fault(
        "peer_gone",
        r"gloo/transport/tcp/\w+\.cc:\d+|(?:Error|Exception): .*Connection (?:reset|closed) by peer",
        True,
        "another rank ended first: the connection to it was reset",
        "Look for the rank whose lines end first, on every node, and for what ended it: its traceback, the kernel's "
        "OOM killer, an Xid.",
    ),
    _fault(
        "scheduler_exception",
        r"Scheduler hit an exception|WorkerProc hit an exception|DetokenizerManager hit an exception",
        True,
        "a worker raised an exception",
        "The traceback follows this line in the log: read it, then restart the server.",
        general=True,
    ),
    _fault(
        "engine_dead",
        r"EngineDeadError|EngineCore encountered (?:a fatal error|an issue)|Engine core initialization "
        r"failed|AsyncLLM output_handler failed",
        True,
        "the engine's core has ended, while its HTTP server may still answer",
        "The first error above it in the log is the cause.",
        general=True,
    ),
    _fault(
        "warmup_failed",
        r"Initialization failed\. warmup error",
        True,
        "the first generation failed",
        "The server is not usable; the cause stands around this line.",
        general=True,
    ),
    _fault(
        "child_failed",
        r"Received sigquit from a child process|SIGQUIT received",
        True,
        "a child process failed and took the server with it",
        "The first error above it in the log is the cause.",
        general=True,
    ),
    _fault(
        "health_failed",
        r"Health check failed\. Server couldn't get a response",
        False,
        "no token came within the health check's time; a long prefill does that too",
        "Look whether it recovers; if not, the scheduler hangs.",
    ),
    _fault(
        "p2p_disabled",
        r"P2P is disabled between connected GPUs",
        False,
        "NCCL was told by NVML that peer-to-peer does not work between GPUs, and goes through host memory",
        "Validate the host: p2p_granted names the layer.",
    ),
)

# A process beside the server that holds this much of a GPU takes what the server needs.
HOLDER_GIB = 1.0
HELD_BY_ANOTHER = (
    "process {pid} holds {gib:.2f} GiB of {where}, beside the server",
    "Look what it is and stop it, or give the server other GPUs: ps -o pid,user,lstart,args -p {pid}",
)

# Out of memory by phase: the hint of the message itself does not say which way to turn.
OUT_OF_MEMORY = {
    "unknown": (
        "GPU memory ran out; in which phase, the log does not say",
        "Look what holds memory on the GPU that the message names: nvidia-smi "
        "--query-compute-apps=gpu_bus_id,pid,used_memory --format=csv.",
        None,
    ),
    "weights": (
        "the weights do not fit beside what else is on the GPUs",
        "Use more GPUs, a smaller quantization, or free the GPUs; --mem-fraction-static does not help here.",
        None,
    ),
    "graphs": (
        "no memory was left to capture CUDA graphs: --mem-fraction-static leaves too little outside the pool",
        "Lower --mem-fraction-static (0.02 to 0.05 less), or --cuda-graph-max-bs.",
        "decrease",
    ),
    "serving": (
        "memory ran out while serving: too little is left outside the pool",
        "Lower --mem-fraction-static or --chunked-prefill-size.",
        "decrease",
    ),
}


def find_fault(line: str, own: Sequence[Fault] = ()) -> Fault | None:
    """The fault that a line reports; `own` are those of the engine that wrote it, which come first."""
    return next((fault for fault in (*own, *FAULTS) if fault.pattern.search(line)), None)
