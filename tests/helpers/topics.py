"""A tiny project folder whose texts are news of five topics, for the evaluate stage."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stages import evaluate
from stages.artifacts.manifest import write_manifest
from stages.params.yamlfile import read_yaml, yaml_text
from stages.runtime.stage import run_stage
from tests.helpers.committed import ROOT
from tests.helpers.tiny import tiny_workspace

TASKS = ROOT / "tasks"
TOPICS = ["business", "entertainment", "politics", "sport", "technology"]
LABELS = ["business", "entertainment", "politics", "sports", "tech"]
WORDS = ["[BOS]", "[END]", "[PAD]", "[UNK]", *TOPICS, "The", "BBC", "filed", "story", "under", "goal", "share", "film"]
DOCUMENTS = Path("data/texts/evaluation_documents.parquet")


def topics_workspace(folder):
    """A tiny model with a tokenizer of a few words, random tokens, and this project's tasks."""
    tiny_workspace(folder, evaluate=settings())
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="[BOS]", eos_token="[END]", pad_token="[PAD]")
    tokenizer.save_pretrained("data/model")
    write_manifest(Path("data/model"), {"source": {"source": "local"}})
    shutil.copytree(TASKS, folder / "tasks")


def settings(names=(), **tasks):
    return {"perplexity": {"window": 16, "stride": 16}, "tasks": {"names": list(names), "max_length": 64, **tasks}}


def documents(labels, texts=None):
    texts = texts or [f"{word} goal share film story {word}" for word, _ in zip(WORDS[4:] * 3, labels, strict=False)]
    pq.write_table(pa.table({"text": texts, "label": list(labels)}), DOCUMENTS)
    os.utime(DOCUMENTS, (0, 0))  # datasets' own cache tells files apart by their time
    return texts


def write_task(name, **changes):
    """A task like bbc_topics; what is set to None is left out."""
    told = read_yaml(Path("tasks/bbc_topics.yaml")) | {"task": name} | changes
    told = {key: value for key, value in told.items() if value is not None}
    Path(f"tasks/{name}.yaml").write_text(yaml_text(told))


def run(which="dense"):
    return run_stage("evaluate", partial(evaluate.main, which=which), ("compute", "evaluate"), cost_name="evaluate_x")
