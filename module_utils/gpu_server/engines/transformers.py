"""`transformers serve` of Hugging Face's transformers 5. Patterns are from its source and from recorded logs."""

from __future__ import annotations

import re

from .engine import Engine, make_phase

ENGINE = Engine(
    name="transformers",
    label="transformers serve",
    launch=("{venv}/bin/python", "{venv}/bin/transformers", "serve"),
    model_flag="",
    default_port=8000,
    command=re.compile(r"(?:^|[/ ])transformers(?:-cli)? serve\b|(?:^| )transformers\.cli\.transformers serve\b"),
    process_name=re.compile(r"^transformers"),
    unit_names=("transformers*.service",),
    log_sign=re.compile(
        r"^\[transformers\] Loading |transformers/cli/(?:serve|serving)|options for 'transformers serve'",
        re.MULTILINE,
    ),
    rank=None,
    starts=re.compile(r"Started server process"),
    phases=(
        make_phase("weights", r"\[transformers\] Loading |Loading weights|Loading checkpoint shards"),
        make_phase("listening", r"Started server process|Waiting for application startup"),
        # It binds its port after "Application startup complete", and may fail to.
        make_phase("ready", r"Uvicorn running on"),
    ),
    ready=re.compile(r"Uvicorn running on"),
    decode=re.compile(r"(?!)(?P<running>)(?P<rate>)(?P<queue>)(?P<usage>)(?P<tokens>)(?P<graph>)"),
    memory_advice=dict.fromkeys(("weights", "serving"), "Use a smaller model or quantization, or free the GPUs."),
    model_names=("model",),
    model_after=("serve",),
    abbreviates=False,
    # It answers 422 to a request with ignore_eos, of any value, which every generator asks for.
    refuses_load="transformers serve refuses its requests (the field ignore_eos)",
)
