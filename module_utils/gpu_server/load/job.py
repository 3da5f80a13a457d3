"""What a load generator is asked to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """One load, and the server that gets it."""

    base: str
    model: str
    concurrency: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    time_limit: int
    seed: int
    result: str = "/result.json"  # the file that the generator shall write
    tokenizer: str | None = None
    trust_remote_code: bool = False
