"""LlamaGen's class-conditional transformer as its paper and public checkpoints define it, without cache or fusion.

Sun et al. 2024, "Autoregressive Model Beats Diffusion", on a state dict in the public layout. Position 0 is the class,
position 1 + n is code n of the image, in row-major order. What is unusual for a Llama:

- position 0 is not rotated but multiplied by zero: its query and key vanish;
- code n at (row, column) = divmod(n, grid) turns the first half of a head's pairs by the row and the second half by
  the column; a pair is two neighbouring dimensions.

All arithmetic is in the dtype of the state dict; tests use float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

State = dict[str, Tensor]
EPSILON, BASE = 1e-5, 10000.0


def swiglu_width(width: int) -> int:
    """Channels of the MLP: two thirds of four times the hidden width, rounded up to a multiple of 256."""
    return -(-int(2 * 4 * width / 3) // 256) * 256


def logits(state: State, classes: Tensor, codes: Tensor, heads: int, key_value_heads: int, grid: int) -> Tensor:
    """Logits (B, 1 + T, vocabulary) after the class and after each of `codes` (B, T), for `classes` (B,)."""
    states = torch.cat(
        [state["cls_embedding.embedding_table.weight"][classes][:, None], state["tok_embeddings.weight"][codes]], dim=1
    )
    block = 0
    while f"layers.{block}.attention.wqkv.weight" in state:
        at = f"layers.{block}."
        normed = rms_norm(states, state[at + "attention_norm.weight"])
        states = states + attention(state, at + "attention.", normed, heads, key_value_heads, grid)
        normed = rms_norm(states, state[at + "ffn_norm.weight"])
        gate, up = normed @ state[at + "feed_forward.w1.weight"].T, normed @ state[at + "feed_forward.w3.weight"].T
        states = states + (gate * torch.sigmoid(gate) * up) @ state[at + "feed_forward.w2.weight"].T
        block += 1
    return rms_norm(states, state["norm.weight"]) @ state["output.weight"].T


def guided_logits(
    state: State, classes: Tensor, codes: Tensor, heads: int, key_value_heads: int, grid: int, scale: float
) -> Tensor:
    """u + s (c - u): c for the class, u for "no class", which is the last row of the table of classes."""
    none = torch.full_like(classes, len(state["cls_embedding.embedding_table.weight"]) - 1)
    with_class = logits(state, classes, codes, heads, key_value_heads, grid)
    without = logits(state, none, codes, heads, key_value_heads, grid)
    return without + scale * (with_class - without)


def greedy_codes(
    state: State, classes: Tensor, heads: int, key_value_heads: int, grid: int, scale: float, guided: int | None = None
) -> Tensor:
    """The most probable code after the most probable ones, (B, grid²); only the first `guided` codes are guided."""
    codes = torch.empty(len(classes), 0, dtype=torch.int64)
    for index in range(grid * grid):
        now = scale if guided is None or index < guided else 1.0
        last = guided_logits(state, classes, codes, heads, key_value_heads, grid, now)[:, -1]
        codes = torch.cat([codes, last.argmax(1, keepdim=True)], dim=1)
    return codes


def probabilities(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Probabilities of the next code from one row of logits (vocabulary,).

    top_k: only the k largest logits (0: all). top_p: of those, only the smallest set of the most probable codes whose
    probability exceeds p.
    """
    order = sorted(range(len(logits)), key=lambda code: -float(logits[code]))
    kept = order[: top_k or len(order)]
    weights = {code: math.exp(float(logits[code] - logits[order[0]]) / temperature) for code in kept}
    total, before = sum(weights.values()), 0.0
    nucleus = []
    for code in kept:
        if before <= top_p:
            nucleus.append(code)
        before += weights[code] / total
    result = torch.zeros_like(logits)
    for code in nucleus:
        result[code] = weights[code] / sum(weights[each] for each in nucleus)
    return result


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """x / √(mean x² + ε), times the weight."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPSILON) * weight


def attention(state: State, at: str, x: Tensor, heads: int, key_value_heads: int, grid: int) -> Tensor:
    """Causal attention, a head at a time; x (B, P, width). Rows of wqkv: all queries, all keys, all values."""
    positions, width = x.shape[1:]
    size = width // heads
    fused = x @ state[at + "wqkv.weight"].T
    queries = fused[..., :width]
    keys = fused[..., width : width + key_value_heads * size]
    values = fused[..., width + key_value_heads * size :]
    cosines, sines = rotation(positions, size, grid, x.dtype)
    answers = []
    for head in range(heads):
        shared = head // (heads // key_value_heads)
        query = rotated(queries[..., head * size : (head + 1) * size], cosines, sines)
        key = rotated(keys[..., shared * size : (shared + 1) * size], cosines, sines)
        value = values[..., shared * size : (shared + 1) * size]
        scores = query @ key.transpose(1, 2) / math.sqrt(size)
        future = torch.ones(positions, positions, dtype=torch.bool).triu(1)
        answers.append(torch.softmax(scores.masked_fill(future, -math.inf), dim=-1) @ value)
    return torch.cat(answers, dim=-1) @ state[at + "wo.weight"].T


def rotation(positions: int, size: int, grid: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine (positions, size / 2) for each pair of dimensions of a head."""
    cosines, sines = torch.zeros(positions, size // 2, dtype=dtype), torch.zeros(positions, size // 2, dtype=dtype)
    for code in range(positions - 1):
        for pair in range(size // 2):
            place, index = (code // grid, pair) if pair < size // 4 else (code % grid, pair - size // 4)
            angle = place / BASE ** (2 * index / (size // 2))
            cosines[1 + code, pair], sines[1 + code, pair] = math.cos(angle), math.sin(angle)
    return cosines, sines


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn the pairs (x[2 i], x[2 i + 1]) of (B, P, size)."""
    result = torch.empty_like(x)
    result[..., 0::2] = x[..., 0::2] * cosines - x[..., 1::2] * sines
    result[..., 1::2] = x[..., 1::2] * cosines + x[..., 0::2] * sines
    return result
