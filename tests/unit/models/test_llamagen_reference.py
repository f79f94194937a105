"""LlamaGenForImageGeneration computes what the plain implementation of the public model does, on converted weights."""

from __future__ import annotations

import pytest
import torch

from stages.models.classes.modeling_llamagen import Guidance
from tests.helpers.llamagen import CLASSES, CODES, GRID, HEADS, WIDTH, converted_model, public_transformer
from tests.reference import llamagen as reference

GROUPED = pytest.mark.parametrize("key_value_heads", [HEADS, 2, 1])
CLOSE = {"rtol": 0.0, "atol": 1e-5}


@pytest.fixture
def networks(tmp_path):
    """Our class, float32, and the public tensors that it was converted from, float64."""

    def make(key_value_heads: int = HEADS):
        state = public_transformer(key_value_heads)
        return converted_model(state, tmp_path), {name: tensor.double() for name, tensor in state.items()}

    return make


@pytest.fixture
def images():
    """Classes (3,), the last of them "no class", and all codes of an image for each."""
    generator = torch.Generator().manual_seed(1)
    return torch.tensor([0, CLASSES - 1, CLASSES]), torch.randint(CODES, (3, GRID**2), generator=generator)


def test_the_public_rule_for_channels_gives_the_published_widths():
    assert [reference.swiglu_width(width) for width in (768, 1024, 1536, 3200)] == [2048, 2816, 4096, 8704]


def test_the_first_position_attends_to_later_ones_by_nothing_and_turns_nothing():
    cosines, sines = reference.rotation(GRID**2 + 1, WIDTH // HEADS, GRID, torch.float64)
    assert not cosines[0].any()
    assert not sines[0].any()
    assert cosines[1].eq(1).all(), "the first code is at row 0, column 0"


@GROUPED
def test_logits_of_a_whole_image_are_those_of_the_public_model(networks, images, key_value_heads):
    model, state = networks(key_value_heads)
    classes, codes = images
    expected = reference.logits(state, classes, codes, HEADS, key_value_heads, GRID)
    found = model(torch.cat([model.prompt(classes), codes], dim=1)).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(found.double(), expected, **CLOSE)


@GROUPED
def test_logits_with_a_cache_are_those_of_the_public_model(networks, images, key_value_heads):
    model, state = networks(key_value_heads)
    classes, codes = images
    expected = reference.logits(state, classes, codes, HEADS, key_value_heads, GRID)
    tokens, cache = torch.cat([model.prompt(classes), codes], dim=1), None
    for position in range(tokens.shape[1]):
        answer = model(tokens[:, position : position + 1], past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        torch.testing.assert_close(answer.logits[:, 0].double(), expected[:, position], **CLOSE)


@pytest.mark.parametrize("scale", [1.75, 4.0, 0.5])
def test_guided_logits_are_those_of_the_public_model(networks, images, scale):
    model, state = networks(2)
    classes, codes = images
    none = torch.full_like(classes, CLASSES)
    prompts = torch.cat([model.prompt(classes), model.prompt(none)])
    logits = model(torch.cat([prompts, codes.repeat(2, 1)], dim=1)).logits
    found = torch.stack([Guidance(scale, None)(codes, logits[:, each]) for each in range(logits.shape[1])], dim=1)
    expected = reference.guided_logits(state, classes, codes, HEADS, 2, GRID, scale)
    torch.testing.assert_close(found.double(), expected, **CLOSE)


@pytest.mark.parametrize(("scale", "guided"), [(1.0, None), (1.75, None), (6.0, 5)])
@pytest.mark.parametrize("use_cache", [True, False])
def test_the_most_probable_codes_are_those_of_the_public_model(networks, images, scale, guided, use_cache):
    model, state = networks()
    classes = images[0]
    expected = reference.greedy_codes(state, classes, HEADS, HEADS, GRID, scale, guided)
    found = model.generate(
        class_labels=classes, guidance_scale=scale, guided_codes=guided, do_sample=False, use_cache=use_cache
    )
    assert torch.equal(found, expected)


def test_the_end_of_guidance_changes_the_codes(networks, images):
    _, state = networks()
    ways = [reference.greedy_codes(state, images[0], HEADS, HEADS, GRID, 6.0, guided) for guided in (None, 5, 0)]
    assert not torch.equal(ways[0], ways[1])
    assert torch.equal(ways[0][:, :5], ways[1][:, :5])
    assert torch.equal(ways[2], reference.greedy_codes(state, images[0], HEADS, HEADS, GRID, 1.0))


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 7, 1.0), (1.0, 0, 0.6), (1.3, 20, 0.5)]
)
def test_codes_are_drawn_from_the_public_distribution(networks, monkeypatch, temperature, top_k, top_p):
    model, state = networks()
    classes, drawn, draw = torch.tensor([1, 3]), list[torch.Tensor](), torch.multinomial

    def recorded(probabilities, *arguments, **options):
        drawn.append(probabilities)
        return draw(probabilities, *arguments, **options)

    monkeypatch.setattr(torch, "multinomial", recorded)
    codes = model.generate(
        class_labels=classes, guidance_scale=2.0, temperature=temperature, top_k=top_k, top_p=top_p, do_sample=True
    )
    assert len(drawn) == GRID**2
    logits = reference.guided_logits(state, classes, codes, HEADS, HEADS, GRID, 2.0)
    for position in (0, GRID**2 - 1):
        for image in range(len(classes)):
            expected = reference.probabilities(logits[image, position], temperature, top_k, top_p)
            torch.testing.assert_close(drawn[position][image].double(), expected, rtol=1e-4, atol=1e-6)
