"""A small image classifier, transformers' ResNet: its features stand in for Inception's, and it judges samples.

    python classifier.py shapes

Writes data/<set>/classifier (config.json, model.safetensors) and results/<set>/classifier.json: accuracy on the
validation and test images, as they are and decoded from their codes, which bounds what samples can reach. Run in this
folder. It is trained on images that are shifted by a few pixels.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from common import Settings, folder_of, load_images, results_of, scaled, settings_of, training_images, warm_cosine
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from transformers import JanusVQVAE, ResNetConfig, ResNetForImageClassification

from stages.models.imaging.tokenizer import decode, encode


def main(name: str) -> None:
    """Train, measure, write."""
    settings, folder, began = settings_of(name), folder_of(name), time.perf_counter()
    torch.manual_seed(settings["classifier"]["seed"])
    images, labels = training_images(name)
    model = train(new_classifier(settings, int(labels.max()) + 1), images, labels, settings["classifier"])
    model.save_pretrained(folder / "classifier")
    tokenizer = JanusVQVAE.from_pretrained(folder / "tokenizer").eval()
    facts: dict[str, Any] = {"parameters": sum(one.numel() for one in model.parameters())}
    for part in ("validation", "test"):
        images, labels = load_images(folder / "images" / part)
        facts[part] = accuracy(model, images, labels)
        facts[f"{part}_tokenized"] = accuracy(model, decode(tokenizer, encode(tokenizer, images)), labels)
    facts["seconds"] = round(time.perf_counter() - began, 1)
    (results_of(name) / "classifier.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(name, facts)


def new_classifier(settings: Settings, classes: int) -> ResNetForImageClassification:
    """The untrained network."""
    widths = settings["classifier"]["widths"]
    config = ResNetConfig(embedding_size=widths[0], hidden_sizes=widths, depths=[1] * len(widths), layer_type="basic")
    config.num_labels = classes
    return ResNetForImageClassification(config)


def train(model: ResNetForImageClassification, images: Tensor, labels: Tensor, settings: Settings) -> Any:
    """Train on uint8 images (n, 3, height, width) and labels (n,)."""
    steps, batch, most = settings["steps"], settings["batch"], settings["shift"]
    model = model.train().to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings["rate"], weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: warm_cosine(step, steps))
    for _ in range(steps):
        chosen = torch.randint(len(images), (batch,))
        loss = cross_entropy(model(shifted(scaled(images[chosen]), most)).logits, labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()


def shifted(pixels: Tensor, most: int) -> Tensor:
    """The batch moved by up to `most` pixels in both directions, edges repeated."""
    down, right = torch.randint(2 * most + 1, (2,)).tolist()
    height, width = pixels.shape[2:]
    return pad(pixels, (most,) * 4, mode="replicate")[:, :, down : down + height, right : right + width]


@torch.no_grad()
def accuracy(model: ResNetForImageClassification, images: Tensor, labels: Tensor) -> float:
    """Share of uint8 images whose most probable class is their label."""
    found = torch.cat([model(scaled(part)).logits.argmax(1) for part in images.split(250)])
    return round(float((found == labels).float().mean()), 4)


if __name__ == "__main__":
    main(sys.argv[1])
