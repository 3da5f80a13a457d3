"""What of a model has to be downloaded, and why a hub gives it not: against a hub on this machine."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import hub_standin
from ansible.module_utils.gpu_provision import hub_cache, hub_download, model_plan
from ansible.module_utils.gpu_provision.hub_client import Hub as HubClient
from ansible.module_utils.gpu_provision.hub_client import HubProblem, find_proxy
from hub_standin import COMMIT, Hub

MODEL = "lukealonso/GLM-5-NVFP4"
UNUSED = {"HF_ENDPOINT": "http://127.0.0.1:9"}  # nothing listens on the port "discard" here


def hub(**more: Any) -> Hub:
    return Hub({MODEL: hub_standin.make_model(size=4096)}, **more)


def plan(cache: Path, environment: dict[str, str], **more: Any) -> dict[str, Any]:
    return model_plan.plan_download(MODEL, more.pop("revision", None), environment, cache=str(cache), **more)


def problem_of(cache: Path, environment: dict[str, str], **more: Any) -> HubProblem:
    with pytest.raises(HubProblem) as caught:
        plan(cache, environment, **more)
    return caught.value


def fill(cache: Path, files: dict[str, bytes], revision: str = "main") -> Path:
    """The cache as snapshot_download leaves it. The directory of the snapshot."""
    directory = cache / "models--lukealonso--GLM-5-NVFP4"
    snapshot = directory / "snapshots" / COMMIT
    (directory / "refs").mkdir(parents=True, exist_ok=True)
    (directory / "blobs").mkdir(exist_ok=True)
    (directory / "refs" / revision).write_text(COMMIT)
    for name, content in files.items():
        path = snapshot / name
        path.parent.mkdir(parents=True, exist_ok=True)
        blob = directory / "blobs" / ("blob-" + name.replace("/", "-"))
        blob.write_bytes(content)
        path.unlink(missing_ok=True)
        path.symlink_to(blob)
    return snapshot


def wanted(model: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in model.items() if not name.startswith("original/")}


def test_an_empty_cache_lacks_everything_but_other_formats_of_the_weights(tmp_path: Path) -> None:
    with hub_standin.running(hub()) as server:
        found = plan(tmp_path, {"HF_ENDPOINT": server.address})
    model = wanted(server.repositories[MODEL])
    assert found["state"] == "missing"
    assert found["commit"] == COMMIT
    assert (found["files"], found["present_files"]) == (5, 0)
    assert found["missing_bytes"] == found["total_bytes"] == sum(map(len, model.values()))
    assert found["left_out"] == ["original/consolidated.00.pth"]
    text = model_plan.describe_plan(found)
    assert "5 of 5 files" in text
    assert "left out: original/consolidated.00.pth" in text


def test_what_lies_there_whole_or_in_part_is_not_missing(tmp_path: Path) -> None:
    with hub_standin.running(hub()) as server:
        model = wanted(server.repositories[MODEL])
        name = "model-00002-of-00003.safetensors"
        fill(tmp_path, {one: content for one, content in model.items() if one != name})
        etag = hashlib.sha256(model[name]).hexdigest()
        blobs = tmp_path / "models--lukealonso--GLM-5-NVFP4" / "blobs"
        (blobs / (etag + ".incomplete")).write_bytes(model[name][:1000])
        found = plan(tmp_path, {"HF_ENDPOINT": server.address})
        assert (found["state"], found["present_files"]) == ("missing", 4)
        assert found["missing_bytes"] == len(model[name]) - 1000
        fill(tmp_path, {name: model[name]})
        assert plan(tmp_path, {"HF_ENDPOINT": server.address})["state"] == "complete"


def test_what_was_verified_once_is_not_asked_for_again(tmp_path: Path) -> None:
    record = str(tmp_path / "state" / "model.json")
    with hub_standin.running(hub()) as server:
        snapshot = fill(tmp_path, wanted(server.repositories[MODEL]))
        first = plan(tmp_path, {"HF_ENDPOINT": server.address})
        model_plan.write_record(record, first, first["sizes"])
        asked = len(server.requests)
        assert plan(tmp_path, {"HF_ENDPOINT": server.address}, record=record)["why"] == "as it was downloaded"
        assert len(server.requests) == asked
        (snapshot / "config.json").resolve().write_bytes(b"{}")
        assert plan(tmp_path, {"HF_ENDPOINT": server.address}, record=record)["state"] == "missing"
    assert plan(tmp_path, UNUSED, revision=COMMIT)["state"] == "whole"


def test_without_a_hub_the_weights_in_the_cache_count_where_they_are_whole(tmp_path: Path) -> None:
    files = wanted(hub_standin.make_model(size=4096))
    snapshot = fill(tmp_path, files)
    found = plan(tmp_path, UNUSED)
    assert found["state"] == "whole"
    assert "not compared with the hub" in found["why"]
    assert plan(tmp_path, {"HF_HUB_OFFLINE": "1"})["state"] == "whole"
    (snapshot / "model-00003-of-00003.safetensors").unlink()
    assert problem_of(tmp_path, UNUSED).kind == "offline"
    assert "HF_HUB_OFFLINE" in problem_of(tmp_path, {"HF_HUB_OFFLINE": "1"}).text


REFUSALS: dict[str, tuple[dict[str, Any], dict[str, str], str, tuple[str, ...]]] = {
    "gated": ({"token": "hf_good", "gated": True}, {}, "gated", ("Accept its conditions on", "HF_TOKEN")),
    "private or none": ({"token": "hf_good"}, {}, "unauthorized", ("or it is private", "HF_TOKEN")),
    "a wrong token": ({"token": "hf_good"}, {"HF_TOKEN": "hf_bad"}, "unauthorized", ("refuses the token",)),
    "forbidden": ({"refusal": (403, {})}, {"HF_TOKEN": "hf_bad"}, "unauthorized", ("the right to read",)),
    "none": ({"refusal": (404, {"X-Error-Code": "RepoNotFound"})}, {"HF_TOKEN": "x"}, "not_found", ("has no model",)),
    "too often": ({"refusal": (429, {})}, {}, "limited", ("Wait some minutes",)),
    "a fault": ({"refusal": (503, {})}, {}, "hub", ("answers 503",)),
    "no JSON": ({"refusal": (200, {})}, {}, "hub", ("is no list of files of a hub",)),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_each_refusal_says_what_to_do(name: str, tmp_path: Path) -> None:
    answers, environment, kind, words = REFUSALS[name]
    with hub_standin.running(hub(**answers)) as server:
        problem = problem_of(tmp_path, {"HF_ENDPOINT": server.address, **environment})
    assert problem.kind == kind, problem.text
    for word in words:
        assert word in problem.text
    assert "hf_" not in problem.text


def test_a_revision_that_is_not_there_is_named(tmp_path: Path) -> None:
    with hub_standin.running(hub()) as server:
        problem = problem_of(tmp_path, {"HF_ENDPOINT": server.address}, revision="v9")
    assert (problem.kind, "no revision v9" in problem.text) == ("no_revision", True)


@pytest.mark.parametrize(
    ("environment", "kind", "word"),
    [
        (UNUSED, "offline", "cannot be reached"),
        ({"HF_ENDPOINT": "http://hub.invalid"}, "dns", "is not resolved"),
        (
            {"http_proxy": "http://name:pass-word@127.0.0.1:9", **UNUSED},
            "proxy",
            "through the proxy http://127.0.0.1:9",
        ),
    ],
)
def test_a_hub_that_is_not_reached_says_where_it_ends(
    environment: dict[str, str], kind: str, word: str, tmp_path: Path
) -> None:
    problem = problem_of(tmp_path, environment)
    assert problem.kind == kind, problem.text
    assert word in problem.text
    assert "pass-word" not in problem.text


def test_space_that_is_missing_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_cache, "measure_free", lambda path: 2000)
    with hub_standin.running(hub()) as server:
        problem = problem_of(tmp_path, {"HF_ENDPOINT": server.address})
        total = sum(map(len, wanted(server.repositories[MODEL]).values()))
    assert problem.kind == "space"
    assert "%s are missing" % model_plan.format_bytes(total - 2000) in problem.text


def test_a_shard_is_as_long_as_its_header_says(tmp_path: Path) -> None:
    files = wanted(hub_standin.make_model(size=4096))
    snapshot = fill(tmp_path, files)
    assert hub_cache.find_faults(str(snapshot)) == []
    shard = snapshot / "model-00001-of-00003.safetensors"
    whole = shard.read_bytes()
    for content, word in (
        (whole[:-100], "%d by its own header" % len(whole)),
        (whole[:6], "no possible length"),
        (b"version https://git-lfs.github.com/spec/v1\n", "no possible length"),
        (whole[:8] + b"{" * (len(whole) - 8), "its header cannot be read"),
    ):
        shard.resolve().write_bytes(content)
        assert [word in fault for fault in hub_cache.find_faults(str(snapshot))] == [True], content[:40]
    (snapshot / "model.safetensors.index.json").resolve().write_text(json.dumps({"weight_map": 3}))
    assert "is no index of weights" in hub_cache.find_faults(str(snapshot))[0]


@pytest.mark.parametrize(
    ("environment", "directory", "cache"),
    [
        ({}, None, "/var/lib/s/.cache/huggingface/hub"),
        ({"HF_HOME": "/data/hf/"}, None, "/data/hf/hub"),
        ({"HF_HOME": "/data/hf", "HF_HUB_CACHE": "/fast/hub"}, None, "/fast/hub"),
        ({"XDG_CACHE_HOME": "/cache"}, None, "/cache/huggingface/hub"),
        ({"HF_HOME": "/data/hf"}, "/models/", "/models"),
    ],
)
def test_the_cache_is_where_the_engine_looks(environment: dict[str, str], directory: str | None, cache: str) -> None:
    assert hub_cache.find_cache(environment, "/var/lib/s", directory) == cache


def test_a_proxy_is_that_of_the_server_and_not_of_ansible() -> None:
    settings = {"HTTPS_PROXY": "proxy:3128", "no_proxy": "mirror.example.org,.local"}
    assert find_proxy("https://huggingface.co", settings) == "http://proxy:3128"
    assert find_proxy("https://mirror.example.org", settings) is None
    assert find_proxy("http://huggingface.co", settings) is None


def test_other_sources_than_the_hub_are_left_alone(tmp_path: Path) -> None:
    for model, environment in (("/srv/models/glm", {}), ("gpt2", {}), (MODEL, {"SGLANG_USE_MODELSCOPE": "true"})):
        found = model_plan.plan_download(model, None, environment, cache=str(tmp_path))
        assert found["state"] == "other", model


def test_code_from_another_repository_is_seen(tmp_path: Path) -> None:
    snapshot = fill(tmp_path, wanted(hub_standin.make_model(size=4096)))
    (snapshot / "config.json").resolve().write_text('{"auto_map": {"AutoModel": "org/code--modeling.Model"}}')
    assert hub_cache.find_other_repositories(str(snapshot)) == ["org/code"]


def test_a_mirror_that_lists_no_sizes_is_believed_as_far_as_it_goes(tmp_path: Path) -> None:
    with hub_standin.running(hub(sizes=False)) as server:
        found = plan(tmp_path, {"HF_ENDPOINT": server.address})
        assert (found["state"], found["files"], found["total_bytes"]) == ("missing", 5, 0)
        fill(tmp_path, wanted(server.repositories[MODEL]))
        assert plan(tmp_path, {"HF_ENDPOINT": server.address})["state"] == "complete"


def test_a_token_that_was_left_on_the_host_counts(tmp_path: Path) -> None:
    assert hub_cache.find_token({"HOME": str(tmp_path)}, "/") is None
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    (tmp_path / ".cache" / "huggingface" / "token").write_text("hf_left\n")
    assert hub_cache.find_token({"HOME": str(tmp_path)}, "/") == "hf_left"
    (tmp_path / "token").write_text("hf_other")
    assert hub_cache.find_token({"HOME": str(tmp_path), "HF_HOME": str(tmp_path)}, "/") == "hf_other"


def bring(cache: Path, server: Hub, **environment: str) -> None:
    """As files/download_model.py does it for a server in a container."""
    client = HubClient({"HF_ENDPOINT": server.address, **environment})
    hub_download.download_repository(MODEL, "main", str(cache), ["original/consolidated.00.pth"], client)


def test_our_own_client_leaves_the_cache_as_huggingface_hub_does(tmp_path: Path) -> None:
    with hub_standin.running(hub(token="hf_good")) as server:
        bring(tmp_path, server, HF_TOKEN="hf_good")
        found = plan(tmp_path, {"HF_ENDPOINT": server.address, "HF_TOKEN": "hf_good"})
        assert found["state"] == "complete"
        assert hub_cache.find_faults(found["directory"], found["sizes"]) == []
        name = "model-00002-of-00003.safetensors"
        link = Path(found["directory"]) / name
        content = server.repositories[MODEL][name]
        assert str(link.readlink()) == "../../blobs/" + hashlib.sha256(content).hexdigest()
        assert link.read_bytes() == content
        assert not (Path(found["directory"]) / "original").exists()
        server.requests.clear()
        bring(tmp_path, server, HF_TOKEN="hf_good")
        assert server.count_files() == {}, "what is whole does not come again"


def test_our_own_client_goes_on_inside_of_a_file(tmp_path: Path) -> None:
    name = "model-00002-of-00003.safetensors"
    with hub_standin.running(hub(cut={name: 3000})) as server:
        with pytest.raises(OSError, match="3000 of"):
            bring(tmp_path, server)
        assert plan(tmp_path, {"HF_ENDPOINT": server.address})["state"] == "missing"
        bring(tmp_path, server)
        assert [begins for _method, path, begins in server.requests if begins and name in path] == ["bytes=3000-"]
        assert plan(tmp_path, {"HF_ENDPOINT": server.address})["state"] == "complete"
    assert list(tmp_path.rglob("*.incomplete")) == []


def test_our_own_client_keeps_nothing_that_the_hub_does_not_name(tmp_path: Path) -> None:
    name = "model-00001-of-00003.safetensors"
    with hub_standin.running(hub()) as server:
        content = server.repositories[MODEL][name]
        blobs = tmp_path / "models--lukealonso--GLM-5-NVFP4" / "blobs"
        blobs.mkdir(parents=True)
        part = blobs / (hashlib.sha256(content).hexdigest() + ".incomplete")
        part.write_bytes(b"x" * 1000)
        with pytest.raises(OSError, match="is not what the hub's list names"):
            bring(tmp_path, server)
        assert not part.exists()
        bring(tmp_path, server)
        assert plan(tmp_path, {"HF_ENDPOINT": server.address})["state"] == "complete"
        server.repositories[MODEL]["../../../../escaped"] = b"x"
        with pytest.raises(OSError, match="leads out of its directory"):
            bring(tmp_path, server)
    with hub_standin.running(hub(token="hf_good", gated=True)) as server, pytest.raises(HubProblem, match="is gated"):
        bring(tmp_path / "other", server)


def test_the_token_stays_with_the_hub_where_the_bytes_lie_elsewhere(tmp_path: Path) -> None:
    content = b"y" * 5000
    seen: dict[str, str | None] = {}

    class Store(BaseHTTPRequestHandler):
        def log_message(self, form: str, *words: Any) -> None:
            pass

        def do_GET(self) -> None:
            seen.update(token=self.headers.get("Authorization"), begins=self.headers.get("Range"))
            self.send_response(206)
            self.send_header("Content-Length", str(len(content) - 10))
            self.end_headers()
            self.wfile.write(content[10:])

    store = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    threading.Thread(target=store.serve_forever, args=(0.02,), daemon=True).start()
    elsewhere = {"Location": "http://127.0.0.1:%d/blob?signed" % store.server_address[1]}
    try:
        with hub_standin.running(hub(refusal=(302, elsewhere))) as server:
            client = HubClient({"HF_ENDPOINT": server.address, "HF_TOKEN": "hf_good"})
            with client.open_file(MODEL, "main", "model.bin", 10) as answer:
                assert (answer.status, answer.read()) == (206, content[10:])
        assert seen == {"token": None, "begins": "bytes=10-"}
    finally:
        store.shutdown()
        store.server_close()
