"""What runs on a CPU in compiled passes runs on other devices in plain tensor operations: the results agree."""

from __future__ import annotations

import pytest
import torch

from stages.linalg.hard_threshold import Quadratic, descend
from stages.linalg.schedule import ThresholdStep


class Elsewhere(torch.Tensor):
    """A tensor of the CPU that says it is on another device."""

    @property
    def device(self):
        return torch.device("cuda")


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("momentum", [False, True], ids=["iht", "maiht"])
def test_hard_thresholding_takes_the_same_steps_on_every_device(momentum, bound):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 24, generator=generator, dtype=torch.float64)
    target = torch.randn(40, 24, generator=generator, dtype=torch.float64)
    gram = inputs.T @ inputs / 200
    alpha = 0.95 / float(torch.linalg.eigvalsh(gram)[-1])

    def largest(scores):
        return scores >= scores.flatten().topk(300).values[-1]

    def steps(kind):
        quadratic = Quadratic(target.as_subclass(kind), gram.as_subclass(kind), alpha)
        return descend(quadratic, lambda step, keep: ThresholdStep(largest, None), 25, momentum, bound)

    (here, told), (there, told_there) = steps(torch.Tensor), steps(Elsewhere)
    assert isinstance(there.offset, Elsewhere)
    assert torch.equal(here.keep, torch.Tensor(there.keep))
    torch.testing.assert_close(here.offset, there.offset.as_subclass(torch.Tensor))
    assert [step.branch for step in told] == [step.branch for step in told_there]
    assert [step.objective for step in told] == pytest.approx([step.objective for step in told_there])
