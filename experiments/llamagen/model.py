"""A small LlamaGen, trained on the codes of the training images.

    python model.py shapes

Writes data/<set>/model, an image model as fetch takes it (config.json, model.safetensors, image_tokenizer), and
results/<set>/model.json: the negative log likelihood of the validation images' codes. Run in this folder. Codes are
predicted one after another, after the class, which is "no class" in one image of ten (Ho, Salimans 2022): so samples
can be guided.
"""

from __future__ import annotations

import json
import shutil
import sys
import time

import torch
from common import Settings, folder_of, load_images, results_of, settings_of, training_images, warm_cosine
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from transformers import JanusVQVAE

from stages.models.classes.modeling_llamagen import LlamaGenConfig, LlamaGenForImageGeneration
from stages.models.imaging.tokenizer import FOLDER, encode, load_image_tokenizer


def main(name: str) -> None:
    """Encode the images, train, measure on the validation images, write."""
    settings, folder, began = settings_of(name), folder_of(name), time.perf_counter()
    torch.manual_seed(settings["model"]["seed"])
    target = folder / "model"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder / "tokenizer", target / FOLDER)
    tokenizer = load_image_tokenizer(target, "cpu")
    images, labels = training_images(name)
    codes, labels = encoded(tokenizer, images, labels, settings["model"]["shift"])
    model = new_model(settings, tokenizer, int(labels.max()) + 1)
    print(f"{name}: {len(codes)} images of {codes.shape[1]} codes in {time.perf_counter() - began:.0f} s")
    held, held_labels = load_images(folder / "images/validation")
    held = encode(tokenizer, held)
    train(model, codes, labels, settings["model"])
    model.save_pretrained(target)
    pairs = {"training": (codes[:1000], labels[:1000]), "validation": (held, held_labels)}
    facts = {
        "parameters": sum(one.numel() for one in model.parameters()),
        "nats_a_code": {part: measure(model, *pair) for part, pair in pairs.items()},
        "seconds": round(time.perf_counter() - began, 1),
    }
    (results_of(name) / "model.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(name, facts)


def encoded(tokenizer: JanusVQVAE, images: Tensor, labels: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Codes of the images and of all their copies moved by up to `most` pixels, edges repeated; their labels."""
    height, width = images.shape[2:]
    wide = pad(images.float(), (most,) * 4, mode="replicate").to(torch.uint8)
    moves = [(down, right) for down in range(2 * most + 1) for right in range(2 * most + 1)]
    parts = [encode(tokenizer, wide[:, :, down : down + height, right : right + width]) for down, right in moves]
    return torch.cat(parts), labels.repeat(len(moves))


def new_model(settings: Settings, tokenizer: JanusVQVAE, classes: int) -> LlamaGenForImageGeneration:
    """The untrained model."""
    own = settings["model"]
    config = LlamaGenConfig(
        vocab_size=tokenizer.config.num_embeddings, num_classes=classes,
        max_position_embeddings=1 + tokenizer.config.num_patches**2, hidden_size=own["width"],
        intermediate_size=own["channels"], num_hidden_layers=own["blocks"], num_attention_heads=own["heads"],
        num_key_value_heads=own["heads"],
    )  # fmt: skip
    return LlamaGenForImageGeneration(config)


def train(model: LlamaGenForImageGeneration, codes: Tensor, labels: Tensor, settings: Settings) -> None:
    """Train on codes (n, codes) of images of classes (n,)."""
    steps, batch = settings["steps"], settings["batch"]
    model.train()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=settings["rate"], betas=(0.9, 0.95), weight_decay=settings["decay"]
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: warm_cosine(step, steps))
    for step in range(steps):
        chosen = torch.randint(len(codes), (batch,))
        loss = loss_of(model, codes[chosen], dropped(model, labels[chosen], settings["dropped"]))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: {loss.item():.4f} nats a code", file=sys.stderr)
    model.eval()


def dropped(model: LlamaGenForImageGeneration, labels: Tensor, share: float) -> Tensor:
    """Labels, a share of them "no class"."""
    return labels.masked_fill(torch.rand(len(labels)) < share, model.config.num_classes)


def loss_of(model: LlamaGenForImageGeneration, codes: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log likelihood of a code, in nats."""
    ids = torch.cat((model.prompt(labels), codes), 1)
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), codes.flatten())


@torch.no_grad()
def measure(model: LlamaGenForImageGeneration, codes: Tensor, labels: Tensor) -> float:
    """`loss_of` all images with their classes."""
    parts = zip(codes.split(250), labels.split(250), strict=True)
    total = sum(float(loss_of(model, part, of)) * len(part) for part, of in parts)
    return round(total / len(codes), 4)


if __name__ == "__main__":
    main(sys.argv[1])
