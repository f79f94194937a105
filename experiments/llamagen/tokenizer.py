"""A small image tokenizer of LlamaGen's design, trained as LlamaGen's: transformers' JanusVQVAE.

    python tokenizer.py shapes

Writes data/<set>/tokenizer (config.json, model.safetensors) and results/<set>/tokenizer.json: its error on the
validation images, and codes in use. Run in this folder. A convolutional encoder gives vectors of unit length, each is
replaced by the nearest of the codebook, and a decoder draws the image. The loss is the image's error (absolute,
squared, and of its differences between neighbours and between colours), the codebook's and a quarter of the
commitment's (van den Oord et al. 2017, equation 3; the gradient goes straight through). A code that no vector of the
last steps was nearest to begins again at one of their vectors.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from common import Settings, folder_of, load_images, results_of, scaled, settings_of, training_images, warm_cosine
from torch import Tensor
from torch.nn.functional import mse_loss, normalize
from transformers import JanusVQVAE, JanusVQVAEConfig

COMMITMENT = 0.25
COLOURS = 3.0
"""Weight of errors between colours: group norms, of two channels here, hide them, so that colours are learnt last."""


def main(name: str) -> None:
    """Train, measure on the validation images, write."""
    settings, began = settings_of(name), time.perf_counter()
    torch.manual_seed(settings["tokenizer"]["seed"])
    images, _ = training_images(name)
    model = train(new_tokenizer(settings), images, settings["tokenizer"])
    model.save_pretrained(folder_of(name) / "tokenizer")
    facts = measure(model, load_images(folder_of(name) / "images/validation")[0])
    facts |= {"parameters": sum(one.numel() for one in model.parameters())}
    facts["seconds"] = round(time.perf_counter() - began, 1)
    (results_of(name) / "tokenizer.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(name, facts)


def new_tokenizer(settings: Settings) -> JanusVQVAE:
    """The untrained network: every multiplier after the first halves the sides of the image."""
    own = settings["tokenizer"]
    grid = settings["images"]["size"] // 2 ** (len(own["multipliers"]) - 1)
    return JanusVQVAE(
        JanusVQVAEConfig(
            num_embeddings=own["codes"], embed_dim=own["width"], latent_channels=own["latent"],
            base_channels=own["channels"], channel_multiplier=own["multipliers"], num_res_blocks=own["blocks"],
            num_patches=grid,
        )
    )  # fmt: skip


def train(model: JanusVQVAE, images: Tensor, settings: Settings) -> JanusVQVAE:
    """Train on uint8 images (n, 3, height, width); the codebook ends with vectors of unit length."""
    steps, batch = settings["steps"], settings["batch"]
    model = model.train().to(memory_format=torch.channels_last)
    codebook = model.quantize.embedding.weight
    torch.nn.init.normal_(codebook)
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings["rate"], betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: warm_cosine(step, steps))
    used = torch.zeros(len(codebook))
    for step in range(steps):
        pixels = scaled(images[torch.randint(len(images), (batch,))])
        vectors, quantised, codes = quantise(model, pixels)
        flat = vectors.movedim(1, -1).flatten(0, -2).detach()
        drawn = draw(model, vectors + (quantised - vectors).detach())
        loss = image_error(drawn, pixels) + codebook_error(vectors, quantised)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        used += torch.bincount(codes, minlength=len(codebook))
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}, {int((used > 0).sum())} codes in use", file=sys.stderr)
        if step % settings["revive"] == 0 and step < 0.8 * steps:
            revive(codebook, used, flat, optimiser)
            used.zero_()
    with torch.no_grad():
        codebook.copy_(normalize(codebook, dim=1))
    return model.eval()


def quantise(model: JanusVQVAE, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The encoder's vectors and the codebook's nearest to them, of unit length (n, width, rows, columns); codes."""
    vectors = normalize(model.quant_conv(model.encoder(pixels)), dim=1)
    codebook = normalize(model.quantize.embedding.weight, dim=1)
    codes = (vectors.movedim(1, -1) @ codebook.T).argmax(-1)
    return vectors, codebook[codes].movedim(-1, 1), codes.flatten()


def draw(model: JanusVQVAE, quantised: Tensor) -> Tensor:
    """The decoder's image."""
    drawn: Tensor = model.decoder(model.post_quant_conv(quantised))
    return drawn


def image_error(drawn: Tensor, pixels: Tensor) -> Tensor:
    """Absolute and squared error, and the absolute errors of differences between neighbours and between colours."""
    difference = drawn - pixels
    colours, *edges = (difference.diff(dim=dim).abs().mean() for dim in (1, 2, 3))
    return difference.abs().mean() + difference.square().mean() + sum(edges) + COLOURS * colours


def codebook_error(vectors: Tensor, quantised: Tensor) -> Tensor:
    """What moves the codebook to the vectors and, more slowly, the vectors to the codebook."""
    return mse_loss(quantised, vectors.detach()) + COMMITMENT * mse_loss(vectors, quantised.detach())


@torch.no_grad()
def revive(codebook: Tensor, used: Tensor, vectors: Tensor, optimiser: torch.optim.Optimizer) -> None:
    """Put codes that were not `used` at random ones of `vectors` (n, width)."""
    dead = (used == 0).nonzero()[:, 0]
    codebook[dead] = vectors[torch.randint(len(vectors), (len(dead),))]
    for moment in optimiser.state[codebook].values():
        if moment.shape == codebook.shape:
            moment[dead] = 0


@torch.no_grad()
def measure(model: JanusVQVAE, images: Tensor) -> dict[str, float]:
    """Error of images encoded and decoded, pixels in [0, 255], and how many codes they use."""
    error, used = 0.0, torch.zeros(len(model.quantize.embedding.weight), dtype=torch.bool)
    for part in images.split(100):
        _, quantised, codes = quantise(model, scaled(part))
        used[codes] = True
        drawn = ((draw(model, quantised) + 1) * 127.5).clamp(0, 255)
        error += float((drawn - part).square().mean()) * len(part)
    return {"rms_error": round((error / len(images)) ** 0.5, 2), "codes_used": int(used.sum())}


if __name__ == "__main__":
    main(sys.argv[1])
