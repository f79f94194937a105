"""Windows of a perplexity protocol: which tokens are put into the model, and which of them are scored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stages.errors import ParameterError
from stages.params.evaluating import Perplexity


@dataclass(frozen=True)
class Window:
    """One input of the model: tokens [start, stop) of the text, after BOS if there is one.

    scored: how many of its last tokens count; each of them has at least one token before it.
    """

    start: int
    stop: int
    scored: int
    bos: int | None = None

    def input_of(self, tokens: Tensor) -> Tensor:
        """The token ids that go into the model: int64 [stop - start], one more with BOS."""
        ids = tokens[self.start : self.stop].long()
        return ids if self.bos is None else torch.cat([ids.new_tensor([self.bos]), ids])


def windows_of(protocol: Perplexity, n_tokens: int, bos: int | None = None) -> list[Window]:
    """The whole windows of a text of `n_tokens` tokens, the first `protocol.windows` of them.

    Side by side (stride = window), all tokens of a window but the first are scored, with BOS all.
    Overlapping (stride < window), the first window is scored like that and every later one only
    in its last `stride` tokens, so no token of the text is scored twice.

    Raises ParameterError if the text is too short, or for BOS where the tokenizer has none.
    """
    if protocol.bos and bos is None:
        raise ParameterError(
            "evaluate.perplexity.bos: the model's tokenizer has no beginning-of-sequence token: set it to false"
        )
    room = n_tokens - protocol.window
    available = room // protocol.stride + 1 if room >= 0 else 0
    wanted = protocol.windows or max(available, 1)
    if wanted > available:
        raise ParameterError(
            f"evaluate.perplexity.windows: the evaluation text has {n_tokens} tokens, which make {available} whole "
            f"windows of {protocol.window} tokens, {protocol.stride} apart; expected {wanted}: "
            f"ask for at most {available}, shorten evaluate.perplexity.window, or fetch a longer text"
        )
    first = bos if protocol.bos else None
    longest = protocol.window if protocol.bos else protocol.window - 1
    starts = [index * protocol.stride for index in range(wanted)]
    return [
        Window(start, start + protocol.window, longest if start == 0 else min(protocol.stride, longest), first)
        for start in starts
    ]
