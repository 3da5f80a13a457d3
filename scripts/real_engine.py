#!/usr/bin/env python3
"""Look at a real engine: `transformers serve` on the CPU with a tiny random model made here. `make real-engine`.

Not part of the tests: PyTorch takes 5 GB and minutes to install. The environment stays in .cache/engine; --python names another one that has
torch, transformers, fastapi and uvicorn. Exit status 1 where the facts do not say what is true of the server.
"""
from __future__ import annotations

import argparse
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[1]
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))
sys.path.insert(0, str(ROOT / "library"))

from ansible.module_utils.gpu_host.live import LiveEvidence
from ansible.module_utils.gpu_server.watching import Watch, of_answers

gather = importlib.import_module("inference_server_facts").facts
PACKAGES = ["torch==2.13.0", "transformers>=5", "fastapi", "uvicorn", "openai", "accelerate"]
MODEL = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers, decoders
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
import torch
torch.manual_seed(1)
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({c: n for n, c in enumerate(["<s>", "</s>", *letters])}, []))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
fast.save_pretrained(sys.argv[1])
config = LlamaConfig(vocab_size=len(letters) + 2, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=4, max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=1)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", help="a Python that has the engine")
    python = parser.parse_args().python or environment()
    with tempfile.TemporaryDirectory() as scratch:
        model = scratch + "/tiny"
        subprocess.run([python, "-c", MODEL, model], check=True, stdout=subprocess.DEVNULL)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        log = Path(scratch) / "server.log"
        command = [python, str(Path(python).parent / "transformers"), "serve", model, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
        with open(log, "wb") as out:
            server = subprocess.Popen(command, stdout=out, stderr=out, env=dict(os.environ, HF_HUB_OFFLINE="1", PYTHONUNBUFFERED="1"))
        try:
            return look(port, log, model)
        finally:
            server.kill()
            server.wait()


def environment() -> str:
    """A virtual environment with the engine, made once."""
    home = ROOT / ".cache" / "engine"
    python = str(home / "bin" / "python")
    if not (home / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (home / "installed").touch()
    return python


def look(port: int, log: Path, model: str) -> int:
    """Wait as the action does, then look at everything."""

    def facts(**more: object) -> dict:
        return gather(LiveEvidence(), {"port": port, "log": str(log), **more})["ansible_facts"]["inference_server"]

    watch, verdict = Watch(scale=1.0, limit_s=300), None
    while verdict is None or verdict.state == "waiting":
        verdict = watch.look(facts(light=True, generate="never"), time.monotonic())
        print("  " + verdict.message, flush=True)
        time.sleep(1)
    found = facts(generate="always")
    answers = of_answers(found, None, None)
    asked = found["generation"]
    shown = {name: asked[name] for name in ("answered", "text", "finite", "repeatable", "first_token_s", "tokens_per_s", "problem")}
    phases = [phase["name"] for phase in found["log"]["phases"]]
    told = {"state": found["state"], "engine": found["engine"], "models": found["api"]["models"], "phases": phases, "packages": found["packages"]}
    print(json.dumps({**told, "generation": shown, "verdict": answers.message}, indent=1))
    good = found["state"] == "ready" and found["engine"] == "transformers" and asked["answered"] and asked["repeatable"] is not False
    if not good:
        print(log.read_text(errors="replace")[-3000:])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
