#!/usr/bin/env python3
"""Make a tiny model whose answer is known: `make_model.py DIRECTORY`, with a Python that has torch and transformers.

A Llama of one layer. Its attention is random, and computed, but adds nothing; its embeddings and its head say which
word follows which. So the greedy answer to "The capital of France is" is the same on every processor, and is text.
"""

from __future__ import annotations

import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PROMPT = ["The", "capital", "of", "France", "is"]
CHAIN = ["Paris", "and", "Rome", "lies", "on", "seven", "hills", "while", "Berlin", "stands", "between", "lakes", "for"]
MARKS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
WORDS = ["<s>", "</s>", "<unk>", *PROMPT, *CHAIN]


def main(directory: str) -> None:
    torch.manual_seed(1)
    numbers = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(numbers, MARKS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **MARKS)
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(directory)
    size = 32
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=size, intermediate_size=2 * size, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=1, tie_word_embeddings=False,
        dtype="float32",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    layer = model.model.layers[0]
    with torch.no_grad():
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size)[: len(WORDS)])
        model.lm_head.weight.zero_()
        for before, after in [
            *zip(PROMPT, PROMPT[1:]),
            (PROMPT[-1], CHAIN[0]),
            *zip(CHAIN, [*CHAIN[1:], CHAIN[0]]),
            ("<unk>", CHAIN[0]),
        ]:
            model.lm_head.weight[numbers[after], numbers[before]] = 8.0
    model.save_pretrained(directory)


if __name__ == "__main__":
    main(sys.argv[1])
