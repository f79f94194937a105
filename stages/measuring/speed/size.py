"""Parameters, bytes and multiply-accumulates (MACs) of a loaded model, counted from its linears as they are."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn

from stages.errors import ArchitectureError
from stages.models.structure import find_blocks, linears_of


@dataclass(frozen=True)
class Products:
    """Counts of a model's multiplications, from which MACs follow.

    linears: Σ d_in · d_out of all linears but the head; head: of the output embedding;
    widths:  Σ over blocks of heads · head_dim, the number of inputs of o;
    last:    whether a prefill computes the head for the last token only.
    """

    linears: int
    head: int
    widths: int
    last: bool


def size_of(model: Any) -> dict[str, int]:
    """`parameters` of the whole model, tied ones once, `block_parameters` of its blocks, `weight_bytes` of all."""
    parameters = list(model.parameters())
    _, blocks = find_blocks(model)
    return {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "block_parameters": sum(parameter.numel() for parameter in blocks.parameters()),
        "weight_bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
    }


def macs_of(model: Any, prompt: int, generate: int) -> dict[str, float]:
    """MACs per token of a prompt of T tokens (`prefill_macs`) and of the g - 1 single tokens after (`decode_macs`).

    With L, H and W of `Products` (linears, head, widths):

        prefill = L + H / T + 2 W T      (L + H + 2 W T where the model cannot leave out the other logits)
        decode  = L + H + 2 W (T + g/2)  (T + g/2: the mean number of keys that a new token is compared with)

    2 W n are the products of a query with n keys, and of n probabilities with their values, in all heads. Those that
    the mask hides are counted: a matrix product computes them; so are, in decode, keys that a sliding window shorter
    than T + g has dropped. Biases, norms, activations, embeddings are not.
    Raises ArchitectureError where the attention of a block, or all of its linears, are not found.
    """
    products = products_of(model)
    head = products.head / prompt if products.last else products.head
    return {
        "prefill_macs": products.linears + head + 2 * products.widths * prompt,
        "decode_macs": products.linears + products.head + 2 * products.widths * (prompt + generate / 2),
    }


def image_macs(model: Any, codes: int, halves: int) -> float:
    """MACs of drawing an image of n codes with a key-value cache, from its class and all codes but the last.

    With L, H and W of `Products`: halves · (n (L + H) + W n (n + 1)), where the i-th of n forwards compares its token
    with i keys. halves: 2 with classifier-free guidance. Raises ArchitectureError as `macs_of` does.
    """
    products = products_of(model)
    return halves * (codes * (products.linears + products.head) + products.widths * codes * (codes + 1))


def products_of(model: Any) -> Products:
    """See `Products`; raises ArchitectureError as `macs_of` does."""
    prefix, blocks = find_blocks(model)
    linears = widths = 0
    for index, block in enumerate(blocks):
        if any(parameter.ndim > 2 for parameter in block.parameters()):
            raise _uncounted(model, index, "has weights of more than two dimensions (experts?)")
        of_block = linears_of(block, prefix, index)
        sinks = [linear for linear in of_block if linear.role == "attention.o"]
        if len(sinks) != 1:
            raise _uncounted(model, index, f"has {len(sinks)} linears attention.o")
        linears += sum(linear.shape[0] * linear.shape[1] for linear in of_block)
        widths += sinks[0].shape[1]
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not head and not name.startswith(f"{prefix}."):
            linears += module.weight.numel()
    return Products(linears, head.weight.numel(), widths, bool(last_logits(model)))


def last_logits(model: Any) -> dict[str, int]:
    """The argument with which a forward computes the logits of the last token only; none if it knows none."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def _uncounted(model: Any, index: int, why: str) -> ArchitectureError:
    return ArchitectureError(
        f"block {index} of {type(model).__name__} {why}: its MACs cannot be counted; set evaluate.speed.repeats to 0, "
        "or add the names of its linears to stages/models/roles.py"
    )
