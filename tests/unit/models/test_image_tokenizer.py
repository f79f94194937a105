"""The image tokenizer is LlamaGen's: codes and pixels of the plain implementation, on converted weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import JanusVQVAE, JanusVQVAEConfig

from stages.errors import ArtifactError, SourceError
from stages.models.imaging import tokenizer as imaging
from stages.models.imaging.tokenizer import BATCH, FOLDER, decode, encode, image_side, load_image_tokenizer
from tests.helpers.documented import blocks
from tests.helpers.llamagen import CHANNELS, CODES, GRID, LATENT, SIDE, converted, public_tokenizer
from tests.reference import llamagen_vq as reference


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A converted model, its codebook not normalised where it came from."""
    return converted(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def tokenizer(folder):
    return load_image_tokenizer(folder, "cpu")


@pytest.fixture(scope="module")
def state():
    """The public tensors, in float64."""
    return {name: tensor.double() for name, tensor in public_tokenizer().items()}


def drawn(largest: int, *shape: int, dtype=torch.int64) -> torch.Tensor:
    return torch.randint(largest, shape, generator=torch.Generator().manual_seed(2), dtype=dtype)


def test_codes_of_images_are_those_of_the_public_network(tokenizer, state):
    images = drawn(256, 5, 3, SIDE, SIDE, dtype=torch.uint8)
    codes = encode(tokenizer, images)
    assert torch.equal(codes, reference.encode(state, images.double() / 127.5 - 1))
    assert codes.unique().numel() > 10


def test_pixels_of_codes_are_those_of_the_public_network(tokenizer, state):
    codes = drawn(CODES, 5, GRID**2)
    expected = reference.decode(state, codes)
    torch.testing.assert_close(tokenizer.decode(codes).double(), expected, rtol=0.0, atol=1e-5)
    levels = (127.5 * expected + 128).clamp(0, 255).to(torch.uint8)  # as LlamaGen's sampler stores them
    apart = (decode(tokenizer, codes).int() - levels.int()).abs()
    assert levels.float().std() > 20
    assert apart.max() <= 1, "float32 may round a tie the other way"
    assert apart.float().mean() < 0.01


def test_a_codebook_that_is_not_normalised_gives_the_same_codes_and_pixels(tokenizer, folder, tmp_path):
    raw = JanusVQVAE.from_pretrained(folder / FOLDER)
    raw.quantize.embedding.weight.data *= torch.linspace(0.1, 10, CODES)[:, None]
    raw.save_pretrained(tmp_path / FOLDER)
    again, images = load_image_tokenizer(tmp_path, "cpu"), drawn(256, 2, 3, SIDE, SIDE, dtype=torch.uint8)
    codes = encode(again, images)
    assert torch.equal(codes, encode(tokenizer, images))
    assert torch.equal(decode(again, codes), decode(tokenizer, codes))


def test_images_do_not_depend_on_those_beside_them(tokenizer, monkeypatch):
    images = drawn(256, BATCH + 3, 3, SIDE, SIDE, dtype=torch.uint8)
    codes = encode(tokenizer, images)
    pixels = decode(tokenizer, codes)
    monkeypatch.setattr(imaging, "BATCH", 1)
    assert torch.equal(encode(tokenizer, images), codes)
    assert (decode(tokenizer, codes).int() - pixels.int()).abs().max() <= 1, "sums may go in another order"


def test_no_images_have_no_codes(tokenizer):
    assert encode(tokenizer, torch.empty(0, 3, SIDE, SIDE, dtype=torch.uint8)).shape == (0, GRID**2)
    assert decode(tokenizer, torch.empty(0, GRID**2, dtype=torch.int64)).shape == (0, 3, SIDE, SIDE)


def test_the_side_of_an_image_is_that_of_its_grid_and_levels(tokenizer):
    assert image_side(tokenizer) == SIDE
    assert not tokenizer.training


@pytest.mark.parametrize(
    ("images", "told"),
    [
        (torch.zeros(1, 3, SIDE, SIDE + 2, dtype=torch.uint8), r"expected uint8 \(3, 8, 8\), got uint8 \(3, 8, 10\)"),
        (torch.zeros(1, 1, SIDE, SIDE, dtype=torch.uint8), r"got uint8 \(1, 8, 8\)"),
        (torch.zeros(1, 3, SIDE, SIDE), r"got float32"),
    ],
)
def test_images_that_do_not_fit_are_refused(tokenizer, images, told):
    with pytest.raises(SourceError, match=told):
        encode(tokenizer, images)


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        (torch.zeros(1, GRID**2 - 1, dtype=torch.int64), r"expected \(images, 16\), got \(1, 15\)"),
        (torch.full((1, GRID**2), CODES), r"expected 0 to 63, got 64 to 64"),
        (torch.full((1, GRID**2), -1), r"expected 0 to 63, got -1 to -1"),
    ],
)
def test_codes_that_do_not_fit_are_refused(tokenizer, codes, told):
    with pytest.raises(SourceError, match=told):
        decode(tokenizer, codes)


def test_a_model_without_an_image_tokenizer_says_what_is_missing(tmp_path):
    with pytest.raises(ArtifactError, match=r"image_tokenizer/config.json is missing"):
        load_image_tokenizer(tmp_path, "cpu")


def test_weights_that_are_not_whole_are_refused(tmp_path):
    sizes = {"base_channels": CHANNELS, "channel_multiplier": [1, 2], "latent_channels": LATENT}
    config = JanusVQVAEConfig(**sizes, num_embeddings=CODES, num_patches=GRID)
    state = {name: tensor for name, tensor in JanusVQVAE(config).state_dict().items() if "encoder.conv_out" not in name}
    JanusVQVAE(config).save_pretrained(tmp_path / FOLDER, state_dict=state)
    with pytest.raises(ArtifactError, match=r"has no tensor for encoder.conv_out.bias"):
        load_image_tokenizer(tmp_path, "cpu")


def test_weights_of_other_sizes_are_refused(folder, tmp_path):
    config = JanusVQVAEConfig.from_pretrained(folder / FOLDER)
    JanusVQVAE.from_pretrained(folder / FOLDER).save_pretrained(tmp_path / FOLDER)
    config.num_embeddings = 2 * CODES
    config.save_pretrained(tmp_path / FOLDER)
    with pytest.raises(ArtifactError, match=r"cannot be loaded as an image tokenizer"):
        load_image_tokenizer(tmp_path, "cpu")


def test_the_code_on_the_page_makes_images(folder):
    (code,) = (block for page, block in blocks("python") if page == "images.md")
    names = dict[str, Any]()
    exec(code.replace('"llamagen-xxl"', repr(str(folder))).replace("[207, 360]", "[0, 1]"), names)
    assert names["codes"].shape == (2, GRID**2)
    assert (names["images"].shape, names["images"].dtype) == ((2, 3, SIDE, SIDE), torch.uint8)
