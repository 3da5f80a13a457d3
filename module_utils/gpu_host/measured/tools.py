"""Which tool wrote an output, told by its content; and where outputs stand in the evidence of a host."""

from __future__ import annotations

import re
from typing import Callable

from . import nccl_tests, nvbandwidth, other_tools, p2p_test
from .output import Output

DIRECTORY = "/measured"  # no directory of any host: where a capture keeps them
_TYPES = "float|half|bfloat16|double|u?int8|u?int32|u?int64|fp8_e4m3|fp8_e5m2|f8e4m3|f8e5m2"
# (tool, what only its output holds). The first that matches counts.
_CONTENT = (
    (
        "p2pBandwidthLatencyTest",
        r"\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]",
        r"(?:Unidirectional|Bidirectional) P2P=\w+ Bandwidth",
        r"^Device=\d+ CAN(?:NOT)? Access Peer Device=\d+",
        r"^\s*P2P=(?:Enabled|Disabled) Latency",
    ),
    (
        "superbench",
        r'^\s*\{?"?(?:nccl-bw|gpu-copy-bw|nvbandwidth|ib-loopback|mem-bw|rccl-bw)(?::[\w-]+)?/[\w:./-]+"?\s*[:=,]',
        r"^gpu\d+_to_gpu\d+_\w*by_\w+ [\d.]+$",
        r'"(?:nccl-bw|gpu-copy-bw|nvbandwidth|mem-bw)(?::[\w-]+)?/[\w:./-]+"\s*:',
    ),
    (
        "dcgmi diag",
        r'"DCGM (?:GPU )?Diagnostic"',
        r'"test_categories"\s*:',
        r"^\|\s*(?:Deployment|Integration|Hardware|Stress)\s",
        r"^Successfully ran diagnostic for group",
    ),
    (
        "nvbandwidth",
        r"^\s*nvbandwidth Version",
        r'"nvbandwidth"\s*:\s*\{',
        r"^Running (?:device|host|all|one)_\w+\.\s*$",
        r"^(?:SUM|MIN|MAX|AVG) (?:device|host|all|one)_\w+ ",
    ),
    (
        "nccl-tests",
        r"^# (?:nccl-tests version|nThread \d+ nGpus|Collective test starting|Avg bus bandwidth)",
        r"^#\s+size\s+count\s+type\s",
        r"^\s+\d+\s+\d+\s+(?:%s)\s+(?:sum|prod|min|max|avg|none)\s+-?\d+\s+[\d.]+\s+[\d.]+\s+[\d.]+" % _TYPES,
    ),
    (
        "perftest",
        r"^\s*(?:RDMA_Write|RDMA_Read|Send|RDMA_Write_with_imm) (?:Bidirectional )?(?:Post List )?(?:BW|Latency) Test",
        r"^\s*#bytes\s+#iterations\s+BW peak",
    ),
    (
        "server benchmark",
        r"^=+ (?:Serving|Offline Throughput) Benchmark Result =+",
        r"^Throughput: [\d.]+ requests/s, [\d.]+ total tokens/s",
        r'"(?:total_token_throughput|output_throughput)"\s*:\s*[\d.]+',
        r"^Prefill\. latency: +[\d.]+ s, throughput:",
    ),
)
_COMPILED = tuple((tool, re.compile("|".join(content), re.M)) for tool, *content in _CONTENT)
_SAMPLE = 2_000_000


def find_tool(text: str) -> str | None:
    """The tool that wrote `text`, None for anything else."""
    return next((tool for tool, content in _COMPILED if content.search(text[:_SAMPLE])), None)


READERS: dict[str, Callable[[str], Output]] = {
    "p2pBandwidthLatencyTest": p2p_test.read_output,
    "nvbandwidth": nvbandwidth.read_output,
    "nccl-tests": nccl_tests.read_output,
    "perftest": other_tools.read_perftest,
    "superbench": other_tools.read_superbench,
    "dcgmi diag": other_tools.read_dcgm,
    "server benchmark": other_tools.read_server_benchmark,
}
