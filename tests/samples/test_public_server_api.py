"""Public answers of servers, read as the note beside each says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_server import api
from captures import SAMPLES  # type: ignore[import-not-found]
from test_server_parts import answering  # type: ignore[import-not-found]


@pytest.mark.parametrize(
    ("name", "model", "context", "owner"),
    [
        ("v1-models-ling-tiny", "Ling-3.0-tiny-bf16", 131072, "sglang"),
        ("v1-models-npu-no-owned-by", "/home/user/weight/GLM-4.7-flash", 202752, None),
        ("v1-models-wrapped-lines", "deepseek-v4.1-flash", 512000, "sglang"),
    ],
)
def test_lists_of_models(name: str, model: str, context: int, owner: str | None) -> None:
    found = answering((SAMPLES / "server_api" / (name + ".txt")).read_text())
    assert (found["models"], found["context_length"], found["owned_by"], found["errors"]) == (
        [model],
        context,
        owner,
        [],
    )


def test_server_information_may_have_any_further_keys() -> None:
    tail = (
        (SAMPLES / "server_api" / "get-server-info-tail-kv-events-sep2026.txt")
        .read_text()
        .strip()
        .removesuffix("</strong>")
    )
    found = api.select_information(json.loads('{"tp_size": 8, "internal_states": [{' + tail))
    assert found["tp_size"] == 8
    assert found["last_gen_throughput"] == pytest.approx(135.8476)
    assert found["memory_usage_gb"] == {"weight": 0.98, "kvcache": 0.23, "token_capacity": 20480, "graph": 0}
