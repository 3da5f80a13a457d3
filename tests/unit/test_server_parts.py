"""Parts of the server facts.

What the API answers, NCCL's settings on a topology, arguments against --help, differences, requests.
"""

from __future__ import annotations

import http.server
import json
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence, RecordingEvidence, dump_bundle, parse_bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import Fetched
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_server import (
    api,
    arguments,
    engines,
    gather,
    model_path,
    model_type,
    nccl,
    processes,
    server_state,
    settings,
)
from host_evidence import Host

ROOT = Path(__file__).resolve().parents[2]
BASE = "http://127.0.0.1:8000"


def answering(models: str, code: int = 200) -> dict[str, Any]:
    records = [
        {"fetch": BASE + "/health", "method": "GET", "status": "ok", "code": 200, "text": ""},
        {"fetch": BASE + "/v1/models", "method": "GET", "status": "ok", "code": code, "text": models},
    ]
    errors = Errors("server")
    found = api.read_api(BundleEvidence({}, records), BASE, engines.ENGINES["sglang"], errors)
    return {**found, "errors": errors.entries}


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "[1, 2", '{"data": 7}', '{"data": [{"id": null}, 5]}', "<html>502</html>", "[" * 100000]
)
def test_what_is_no_list_of_models_is_unknown_or_empty(text: str) -> None:
    found = answering(text)
    assert found["models"] in (None, [])
    assert found["model"] is None
    assert found["models_problem"].startswith("GET http://127.0.0.1:8000/v1/models ")


def test_a_list_that_was_not_captured_or_wants_a_key_is_no_fault_of_it() -> None:
    errors = Errors("server")
    health = {"fetch": BASE + "/health", "method": "GET", "status": "ok", "code": 200, "text": ""}
    found = api.read_api(BundleEvidence({}, [health]), BASE, engines.ENGINES["sglang"], errors)
    assert (found["models"], found["models_problem"]) == (None, None)
    assert [entry["source"] for entry in errors.entries] == ["GET %s/v1/models" % BASE]
    assert (answering("{}", 401)["models_problem"], answering("{}", 403)["needs_key"]) == (None, True)


@pytest.mark.parametrize(
    ("engine", "words", "path", "served"),
    [
        (
            "sglang",
            "python -m sglang.launch_server --model-path /m/glm --served-model-name glm-5 --port 8000",
            "/m/glm",
            "glm-5",
        ),
        ("sglang", "python -m sglang.launch_server --model org/glm", "org/glm", "org/glm"),
        ("vllm", "vllm serve org/glm --served-model-name glm glm-5", "org/glm", "glm"),
        ("transformers", "python /opt/bin/transformers serve /m/tiny --port 9", "/m/tiny", "/m/tiny"),
        ("transformers", "python /opt/bin/transformers serve --port 9", None, None),
        (None, "sleep 5", None, None),
    ],
)
def test_the_model_of_a_command_line(engine: str | None, words: str, path: str | None, served: str | None) -> None:
    assert (engines.find_model_path(engine, words.split()), engines.find_served_name(engine, words.split())) == (
        path,
        served,
    )


def test_a_key_that_is_wanted_is_said() -> None:
    found = answering('{"error": "Unauthorized"}', 401)
    assert found["needs_key"] is True
    assert "API key" in found["errors"][0]["problem"]


def test_metrics_are_summed_and_nan_is_no_number() -> None:
    text = (
        'sglang:num_running_reqs{dp="0"} 3.0\nsglang:num_running_reqs{dp="1"} 4.0\nsglang:token_usage '
        "0.5\nsglang:gen_throughput NaN\n"
    )
    assert api.parse_metrics(text, engines.ENGINES["sglang"]) == {
        "running": 7.0,
        "queue": None,
        "usage": 0.5,
        "tokens_per_s": None,
    }


def stream(*scores: Any, text: str = " word") -> Fetched:
    events = [{"choices": [{"text": text, "logprobs": {"token_logprobs": [score]}}]} for score in scores]
    data = "".join("data: %s\n\n" % json.dumps(event) for event in events) + "data: [DONE]\n\n"
    return Fetched("POST", BASE, "ok", 200, data.encode(), seconds=1.1, first_byte_s=0.1)


def test_a_stream_gives_text_rate_and_finite_logprobs() -> None:
    found = api.read_stream(stream(-0.5, -0.25, -1.0))
    assert (found["text"], found["tokens"], found["finite"], found["first_token_s"], found["tokens_per_s"]) == (
        " word" * 3,
        3,
        True,
        0.1,
        2.0,
    )


@pytest.mark.parametrize("score", [None, math.nan, -math.inf])
def test_logprobs_that_are_not_finite(score: Any) -> None:
    assert api.read_stream(stream(-0.5, score))["finite"] is False


def test_an_answer_without_a_stream() -> None:
    body = json.dumps({"choices": [{"message": {"content": "Paris"}}]}).encode()
    assert api.read_stream(Fetched("POST", BASE, "ok", 200, body, seconds=1.0, first_byte_s=0.9))["text"] == "Paris"


@pytest.mark.parametrize("body", [b"", b"data: {\n\n", b'data: {"error": {"message": "engine dead"}}\n\n', b"\xff\xfe"])
def test_an_answer_that_holds_no_text_is_a_problem(body: bytes) -> None:
    assert api.read_stream(Fetched("POST", BASE, "ok", 200, body))["problem"]


LINKS = {"a": {"b": "PHB", "c": "SYS"}, "b": {"a": "PHB", "c": "NODE"}, "c": {"a": "SYS", "b": "NODE"}}
TOPOLOGY = {"links": LINKS, "unknown_pairs": [], "nvlink_shown": True}


@pytest.mark.parametrize(
    ("environment", "level", "shut_out"),
    [
        ({}, "PXB", ["a-b", "a-c", "b-c"]),
        ({"NCCL_P2P_LEVEL": "PHB"}, "PHB", ["a-c"]),
        ({"NCCL_P2P_LEVEL": "5"}, "SYS", []),
        ({"NCCL_P2P_LEVEL": "3"}, "PHB", ["a-c"]),
        ({"NCCL_P2P_LEVEL": "sys"}, "PXB", ["a-b", "a-c", "b-c"]),
        ({"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "1"}, "SYS", ["a-b", "a-c", "b-c"]),
    ],
)
def test_what_a_level_permits(environment: dict[str, str], level: str, shut_out: list[str]) -> None:
    found = nccl.read_nccl(Host(), environment, TOPOLOGY, True, 1)
    assert (found["level"], found["shut_out_pairs"]) == (level, shut_out)


def test_two_gpus_on_amd_may_go_anywhere() -> None:
    found = nccl.read_nccl(Host(), {}, {"links": {"a": {"b": "SYS"}, "b": {"a": "SYS"}}, "unknown_pairs": []}, True, 1)
    assert (found["level"], found["level_source"], found["shut_out_pairs"]) == ("SYS", "default", [])


def test_the_environment_wins_over_the_configuration_files() -> None:
    files = [{"read": "/etc/nccl.conf", "status": "ok", "text": "# old\nNCCL_P2P_LEVEL=LOC\nNCCL_P2P_DISABLE=1\n"},
             {"read": "/root/.nccl.conf", "status": "ok", "text": "NCCL_P2P_DISABLE=0\n"}]  # fmt: skip
    found = nccl.read_nccl(
        BundleEvidence({}, files), {"HOME": "/root", "NCCL_P2P_LEVEL": "SYS", "NCCL_IB_DISABLE": "1"}, TOPOLOGY, True, 1
    )
    assert (found["level"], found["disabled"], found["without_effect"]) == ("SYS", False, ["NCCL_IB_DISABLE"])


def test_an_unknown_environment_leaves_everything_unknown() -> None:
    found = nccl.read_nccl(BundleEvidence({}, []), None, TOPOLOGY, True, 1)
    assert (found["settings"], found["level"], found["shut_out_pairs"], found["disabled"]) == (None, None, None, None)


HELP = """usage: sglang serve [-h] [--model-path MODEL_PATH]

options:
  -h, --help            show this help message and exit
  --model-path, --model MODEL_PATH
                        The path of the model. Not --gone-flag any more.
  --tensor-parallel-size, --tp-size TENSOR_PARALLEL_SIZE
                        The tensor parallelism size.
  --dsa-decode-backend {flashmla,trtllm}
                        Choose the kernel.
  --mem-fraction-static MEM_FRACTION_STATIC
  --trust-remote-code   Whether or not
"""


@pytest.mark.parametrize(
    ("given", "problem", "successor"),
    [
        ({"nsa-decode-backend": "trtllm"}, "unknown", "--dsa-decode-backend"),
        ({"gone-flag": True}, "unknown", None),
        ({"dsa-decode-backend": "cutlass"}, "not one of its choices", None),
        ({"t": 8}, "the beginning of several names (--tensor-parallel-size, --tp-size, --trust-remote-code)", None),
        ({"mod": "x"}, "the beginning of several names (--model-path, --model)", None),  # two names of one option
        ({"mem-fraction-static-x": 0.9}, "unknown", "--mem-fraction-static"),
        ({"dsa": "cutlass"}, "not one of its choices", None),
    ],
)
def test_arguments_that_the_engine_does_not_take(given: dict[str, Any], problem: str, successor: str | None) -> None:
    [fault] = arguments.find_problems(given, arguments.parse_options(HELP), engines.ENGINES["sglang"])
    assert problem in fault["problem"]
    assert fault["successor"] == successor


def test_arguments_that_the_engine_takes() -> None:
    given = {
        "model": "x",
        "tp-size": 8,
        "dsa-decode-backend": "trtllm",
        "mem-fraction-static": 0.9,
        "trust-remote-code": True,
        "absent": False,
    }
    assert arguments.find_problems(given, arguments.parse_options(HELP), engines.ENGINES["sglang"]) == []


def test_shortened_names_are_what_argparse_takes_them_for() -> None:
    options, engine = arguments.parse_options(HELP), engines.ENGINES["sglang"]
    given = {
        "tp": 8,
        "mem-fraction": 0.9,
        "trust-remote-cod": True,
        "dsa": "trtllm",
        "model": "x",
        "te": 4,
        "off": False,
    }
    assert arguments.find_problems(given, options, engine) == []
    assert arguments.find_shortened(given, options, engine) == {
        "--tp": "--tp-size",
        "--mem-fraction": "--mem-fraction-static",
        "--trust-remote-cod": "--trust-remote-code",
        "--dsa": "--dsa-decode-backend",
        "--te": "--tensor-parallel-size",
    }


def test_click_takes_no_shortened_name() -> None:
    options, engine = {"--attn-implementation": None, "--help": None}, engines.ENGINES["transformers"]
    [fault] = arguments.find_problems({"attn-impl": "sdpa"}, options, engine)
    assert "unknown" in fault["problem"] and fault["successor"] == "--attn-implementation"
    assert arguments.find_shortened({"attn-impl": "sdpa"}, options, engine) == {}


def test_a_member_of_a_json_argument_is_vllms() -> None:
    options, given = {"--compilation-config": None}, {"compilation_config.max_capture": 8, "compilation-conf.mode": 3}
    assert arguments.find_problems(given, options, engines.ENGINES["vllm"]) == []
    assert len(arguments.find_problems(given, options, engines.ENGINES["sglang"])) == 2


@pytest.mark.parametrize(
    ("engine", "line", "names"),
    [
        ("sglang", "--tp 8 --model-p x --por 9000", {"tp": "8", "model-path": "x", "port": "9000"}),
        ("sglang", "--tensor 8 --context 4096", {"tensor-parallel-size": "8", "context-length": "4096"}),
        ("vllm", "--tensor-par 4 --max-model 100", {"tensor-parallel-size": "4", "max-model-len": "100"}),
        ("vllm", "--tokenizer x --unheard-of 1", {"tokenizer": "x", "unheard-of": "1"}),
        ("transformers", "--por 9000", {"por": "9000"}),  # click would have refused it
    ],
)
def test_settings_stand_under_their_full_names(engine: str, line: str, names: dict[str, str]) -> None:
    assert engines.find_settings(engines.ENGINES[engine], line.split()) == names


def test_a_shortened_expectation_is_compared_by_its_full_name() -> None:
    engine = engines.ENGINES["sglang"]
    live = engines.find_settings(engine, ["--context", "4096", "--tp", "8"])
    for expected in ({"context": 4096}, {"context-length": 4096}, {"max-model-len": 4096}, {"tensor-par": 8}):
        assert settings.compare_settings({"arguments": expected}, live, None, engine) == []
    [found] = settings.compare_settings({"arguments": {"conte": 8192}}, live, None, engine) or []
    assert found == {"name": "--conte", "expected": "8192", "live": "4096"}


def test_underscores_are_dashes_to_vllm_only() -> None:
    given = {"mem_fraction_static": 0.9}
    assert arguments.find_problems(given, arguments.parse_options(HELP), engines.ENGINES["vllm"]) == []
    [fault] = arguments.find_problems(given, arguments.parse_options(HELP), engines.ENGINES["sglang"])
    assert fault["successor"] == "--mem-fraction-static"


def test_a_server_without_metrics_and_gpus_is_idle_where_no_client_is_connected() -> None:
    def seen(*states: str) -> tuple[Any, Any, Any]:
        rows = "".join(
            "   0: 0100007F:1F40 0100007F:%s %s 00000000:00000000\n" % ("0000" if state == "0A" else "D431", state)
            for state in states
        )
        host = (
            Host()
            .directory("/proc", {})
            .file("/proc/net/tcp", "  sl  local_address rem_address   st\n" + rows)
            .file("/proc/net/tcp6", "")
        )
        facts = gather.gather(host, {"port": 8000}, Errors("server"))
        assert facts is not None
        return facts["port"]["connections"], facts["busy"], facts["busy_because"]

    assert seen("0A") == (0, False, "no client is connected to port 8000")
    assert seen("0A", "06") == (0, False, "no client is connected to port 8000")  # one that has ended
    assert seen("0A", "01") == (1, None, None)
    assert seen("0A", "08") == (1, None, None)  # the client has gone, its request may go on
    assert seen() == (None, None, None)


@pytest.mark.parametrize(
    ("connections", "busy", "because"),
    [
        (0, False, "no client is connected to port 8000"),
        (1, True, "1 requests ran 9 s ago"),
        (None, True, "1 requests"),
    ],
)
def test_a_request_that_was_answered_is_no_work(connections: int | None, busy: bool, because: str) -> None:
    """What the log counted some seconds ago was our own question whether the server is ready: its client has gone."""
    facts: dict[str, Any] = {
        "api": {"metrics": None},
        "log": {"decode": {"age_s": 9, "running": 1, "queue": 0}},
        "gpu": {"busy": None, "utilization": [], "unread": None},
        "port": {"port": 8000, "connections": connections},
    }
    server_state.judge_busy(facts)
    assert facts["busy"] is busy and facts["busy_because"].startswith(because)


def test_options_as_click_shows_them() -> None:
    text = """Usage: transformers serve [OPTIONS] [FORCE_MODEL]

  Run a FastAPI server to serve models on-demand.

Options:
  --compile / --no-compile        Enable torch.compile for faster inference.
                                  [default: no-compile]
  --reasoning [on|off|auto]       Reasoning mode. 'auto' uses the chat template
                                  default.  [default: auto]
  --attn-implementation TEXT      Attention implementation (e.g.
                                  flash_attention_2).
  -h, --help                      Show this message and exit.
"""
    options = arguments.parse_options(text)
    assert options == {
        "--compile": None, "--no-compile": None, "--reasoning": ["on", "off", "auto"], "--attn-implementation": None,
        "--help": None,
    }  # fmt: skip
    faults = arguments.find_problems(
        {"reasoning": "maybe", "atn-implementation": "sdpa", "compile": True}, options, engines.ENGINES["transformers"]
    )
    assert arguments.describe_faults(faults) == (
        "--reasoning: maybe is not one of its choices (on, off, auto)\n"
        "--atn-implementation: unknown to the installed transformers; use --attn-implementation"
    )


def test_a_model_type_that_the_installed_transformers_lacks() -> None:
    site = "/opt/sglang/lib/python3.12/site-packages"
    records = [
        {"list": "/opt/sglang/lib", "status": "ok", "entries": {"python3.12": {"kind": "dir"}}},
        {"list": site, "status": "ok", "entries": {"transformers-4.57.1.dist-info": {"kind": "dir"}}},
        {
            "read": site + "/transformers/models/auto/configuration_auto.py",
            "status": "ok",
            "text": '("glm4_moe", "Glm4MoeConfig"),',
        },
        {"read": "/models/glm-5/config.json", "status": "ok", "text": '{"model_type": "glm_moe_dsa"}'},
    ]
    words = ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]
    found = model_type.read_model_type(BundleEvidence({}, records), "/models/glm-5", words, {})
    assert found == {
        "model_type": "glm_moe_dsa",
        "known": False,
        "transformers": "4.57.1",
        "config": "/models/glm-5/config.json",
    }


def test_differences_between_what_is_meant_and_what_runs() -> None:
    expected = {
        "arguments": {
            "tp-size": 8,
            "trust-remote-code": True,
            "disable-radix-cache": False,
            "quantization": "fp8",
            "api-key": "secret",
        },
        "environment": {"NCCL_P2P_LEVEL": "SYS", "OMP_NUM_THREADS": 8, "HF_TOKEN": "secret"},
    }
    live = {"tp": "8", "trust-remote-code": True, "disable-radix-cache": True, "api-key": "********"}
    found = settings.compare_settings(expected, live, {"NCCL_P2P_LEVEL": "PHB", "OMP_NUM_THREADS": "8"})
    assert found is not None
    assert {one["name"]: (one["expected"], one["live"]) for one in found} == {
        "--disable-radix-cache": (None, "set"), "--quantization": ("fp8", None), "NCCL_P2P_LEVEL": ("SYS", "PHB"),
    }  # fmt: skip


def test_an_environment_that_cannot_be_read_is_no_agreement() -> None:
    assert settings.compare_settings({"environment": {"NCCL_P2P_LEVEL": "SYS"}}, {}, None) is None


class _Drip(http.server.BaseHTTPRequestHandler):
    """Sends a byte, and another one a moment later, for ever."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while not self.server.over:  # type: ignore[attr-defined]
                self.wfile.write(b"x")
                self.wfile.flush()
                time.sleep(0.05)
        except OSError:
            pass

    def log_message(self, form: str, *words: Any) -> None:
        pass


@pytest.fixture
def drip() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Drip)
    server.over = False  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.over = True  # type: ignore[attr-defined]
    server.shutdown()


def test_an_answer_that_never_ends_ends_in_time(drip: int) -> None:
    began = time.monotonic()
    answer = LiveEvidence().fetch("GET", "http://127.0.0.1:%d/" % drip, timeout=0.5)
    assert time.monotonic() - began < 5
    assert (answer.status, answer.ok) == ("timeout", False)


def test_nobody_listens() -> None:
    assert LiveEvidence().fetch("GET", "http://127.0.0.1:9/", timeout=2).status == "absent"


@pytest.mark.parametrize("url", ["http://", "no url", "http://127.0.0.1:notaport/", "http://127.0.0.1:99999/"])
def test_no_address_is_no_exception(url: str) -> None:
    assert LiveEvidence().fetch("GET", url, timeout=1).status == "failed"


def test_a_recorded_answer_is_the_same_and_its_keys_are_masked() -> None:
    text = '{"api_key":"sk-0123456789abcdef0123","tp_size":8}'
    source = BundleEvidence(
        {}, [{"fetch": BASE + "/server_info", "method": "GET", "status": "ok", "code": 200, "text": text}]
    )
    recorder = RecordingEvidence(source)
    answer = recorder.fetch("GET", BASE + "/server_info", headers={"Authorization": "Bearer topsecret"})
    bundle = dump_bundle({"captured_at": 1.0}, recorder.records)
    assert "topsecret" not in bundle
    assert "0123456789abcdef" not in bundle
    assert json.loads(answer.text)["tp_size"] == 8
    assert parse_bundle(bundle.encode()).fetch("GET", BASE + "/server_info") == answer


def test_a_process_that_does_not_show_its_command_line_is_not_taken_for_no_server() -> None:
    stat = "55 (python3) D 1" + " 0" * 18
    host = Host().directory("/proc", {"55": {"kind": "dir"}}).file("/proc/55/stat", stat)
    host.file("/proc/55/cmdline", status="timeout", reason="no answer within 5 s: process 55 state D, waits in nv_wait")
    errors = Errors("server")
    facts = gather.gather(host, {}, errors)
    assert facts is not None and facts["state"] == "unhealthy"
    assert "not known" in facts["why"] and "55 (python3, state D)" in facts["why"]
    told = [entry["problem"] for entry in errors.entries if entry["source"] == "/proc/55/cmdline"]
    assert told == ["no answer within 5 s: process 55 state D, waits in nv_wait"]
    host.file("/proc/55/cgroup", "0::/system.slice/backup.service\n")
    elsewhere = gather.gather(host, {"unit": "inference-server"}, Errors("server"))
    assert elsewhere is not None and elsewhere["state"] == "absent"


@pytest.mark.parametrize(
    ("model", "stdout", "stderr", "told"),
    [
        ("org/name", "", "", None),
        ("/srv/models/glm", "", "", None),
        (
            "/srv/models/glm/",
            "/srv/models/glm/model.safetensors\n",
            "",
            "user inference cannot read /srv/models/glm/model.safetensors",
        ),
        (
            "/srv/models/glm",
            "",
            "find: '/srv/models/glm': Permission denied\n",
            "user inference cannot read /srv/models/glm:",
        ),
        ("/srv/models/none", "", "", "The model /srv/models/none is not on this host"),
        ("/mnt/none/glm", "", "", "The model /mnt/none/glm is not on this host"),
    ],
)
def test_a_model_that_is_not_there_or_not_readable(model: str, stdout: str, stderr: str, told: str | None) -> None:
    host = Host().directory("/srv/models", {"glm": {"kind": "dir"}})
    host.command(
        model_path.unreadable_command(model.rstrip("/"), "inference"), stdout, rc=1 if stderr else 0, stderr=stderr
    )
    found = model_path.find_problem(host, model, "inference")
    assert found == told or (told and found and told in found)
    assert (
        model_path.find_problem(Host().directory("/srv/models", {"glm": {"kind": "dir"}}), "/srv/models/glm", None)
        is None
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_file_of_the_model_that_only_root_may_read_is_named() -> None:
    model = Path(tempfile.mkdtemp(dir="/opt"))
    try:
        model.chmod(0o755)
        (model / "config.json").write_text("{}")
        assert model_path.find_problem(LiveEvidence(), str(model), "nobody") is None
        (model / "model.safetensors").write_text("")
        (model / "model.safetensors").chmod(0o600)  # as safetensors writes it
        assert "nobody cannot read %s/model.safetensors" % model in str(
            model_path.find_problem(LiveEvidence(), str(model), "nobody")
        )
        model.chmod(0o700)
        assert "nobody cannot read %s:" % model in str(model_path.find_problem(LiveEvidence(), str(model), "nobody"))
    finally:
        shutil.rmtree(model)


@pytest.mark.parametrize(
    ("title", "rank"),
    [
        ("sglang::scheduler", 0),  # 0.5.17 with --tp 1 on one H200
        ("sglang::scheduler_TP3", 3),
        ("sglang::scheduler_DP1_TP5", 5),
        ("sglang::scheduler_PP1_TP2_EP2", 2),
        ("sglang::scheduler_DP2", 2),
        ("sglang::detokenizer", None),
        ("python3 -m sglang.launch_server", None),
    ],
)
def test_the_rank_of_a_process_is_in_its_title(title: str, rank: int | None) -> None:
    assert processes.find_rank(engines.ENGINES["sglang"], title) == rank
