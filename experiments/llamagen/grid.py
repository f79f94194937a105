"""The paper's Figure 3 for a set: samples of the dense and the pruned models, one of each class, same random numbers.

    python grid.py shapes

Writes results/<set>/grid.png; run in this folder.
"""

from __future__ import annotations

import sys

from common import folder_of, results_of, settings_of
from matplotlib.figure import Figure
from safetensors.torch import load_file
from torch import Tensor

from stages.models.imaging.tokenizer import decode, load_image_tokenizer


def main(name: str) -> None:
    """Draw a row a model, a column a class."""
    settings = settings_of(name)["prune"]
    tokenizer = load_image_tokenizer(folder_of(name) / "model", "cpu")
    seed = settings["seeds"][0]
    rows = [("dense", 0.0), *((method, at) for at in settings["shown"] for method in settings["methods"])]
    shown = []
    for method, sparsity in rows:
        part = load_file(folder_of(name) / f"samples/{seed}_{method}_{sparsity:g}.safetensors")
        shown.append(decode(tokenizer, first_of_each(part["codes"].long(), part["labels"])))
    figure = Figure(figsize=(0.8 * len(shown[0]) + 1.6, 0.8 * len(rows)), layout="constrained")
    for places, (method, sparsity), images in zip(figure.subplots(len(rows), len(shown[0])), rows, shown, strict=True):
        for place, image in zip(places, images, strict=True):
            place.imshow(image.permute(1, 2, 0).numpy())
            place.set(xticks=[], yticks=[])
        label = f"{method}, {sparsity:.0%}" if sparsity else method
        places[0].set_ylabel(label, rotation=0, horizontalalignment="right", verticalalignment="center")
    figure.savefig(results_of(name) / "grid.png", dpi=100)


def first_of_each(codes: Tensor, labels: Tensor) -> Tensor:
    """Codes of the first sample of every class, by class."""
    return codes[[int((labels == label).nonzero()[0]) for label in labels.unique()]]


if __name__ == "__main__":
    main(sys.argv[1])
