"""Sampling of LlamaGen with a key-value cache against sampling without, in CPU time."""

from __future__ import annotations

import time

import torch

from stages.models.classes.modeling_llamagen import LlamaGenConfig, LlamaGenForImageGeneration


def test_a_cache_makes_sampling_of_256_codes_five_times_as_fast():
    """Ten times here; another process cannot change CPU time much, and the cache has its better turn of two."""
    torch.manual_seed(0)
    config = LlamaGenConfig(
        vocab_size=64, num_classes=4, max_position_embeddings=257, hidden_size=192, intermediate_size=768,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
    )  # fmt: skip
    model = LlamaGenForImageGeneration(config).eval()

    def drawn(use_cache):
        torch.manual_seed(0)
        begin = time.process_time()
        codes = model.generate(class_labels=torch.arange(1), guidance_scale=1.75, use_cache=use_cache)
        return time.process_time() - begin, codes

    first, without, second = (drawn(use_cache) for use_cache in (True, False, True))
    assert first[1].equal(without[1])
    assert without[0] >= 5 * min(first[0], second[0])
