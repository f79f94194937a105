"""fetch leaves a model and two texts that the later stages can read, or the last good ones."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from stages.artifacts.manifest import read_manifest, sha256_of, verified
from stages.artifacts.places import MODEL, TEXTS
from stages.artifacts.tokens import read_tokens
from stages.fetch import SECTIONS, main
from stages.params import Compute
from stages.runtime.stage import run_stage
from stages.runtime.workspace import open_model
from tests.helpers.tiny import VOCABULARY, save_tiny, write_params

WORDS = ["<unk>", *(f"word{number}" for number in range(1, VOCABULARY))]
SOURCES = {
    "model": {"source": "local", "path": "source"},
    "calibration": {"source": "local", "path": "a.jsonl", "label_column": "topic"},
    "evaluation": {"source": "local", "path": "b.txt"},
}


def save_tokenizer(folder, words=WORDS):
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)


def sentence(draw):
    return " ".join(draw.choices(WORDS[1:], k=20))


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    """A project folder with a local model and two local texts of made-up words."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    save_tiny(Path("source"), "llama")
    save_tokenizer("source")
    rows = [{"text": sentence(draw), "topic": "ab"[number % 2]} for number in range(6)]
    Path("a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("b.txt").write_text("\n".join(sentence(draw) for _ in range(6)))


def fetch(**sections):
    """Run the stage with `sections` of fetch merged into the workspace's; gives the exit code."""
    write_params(Path(), fetch={name: {**values, **sections.get(name, {})} for name, values in SOURCES.items()})
    return run_stage("fetch", main, SECTIONS)


def hashes():
    return {str(path): sha256_of(path) for path in sorted(Path("data").rglob("*")) if path.is_file()}


def test_later_stages_read_what_is_fetched():
    assert fetch() == 0
    model, identity = open_model(Compute(device="cpu"))
    assert identity == sha256_of(MODEL / "manifest.json")
    tokens = {name: read_tokens(TEXTS, name, read_manifest(TEXTS)) for name in ("calibration", "evaluation")}
    expected = [WORDS.index(word) for word in Path("b.txt").read_text().split()]
    assert tokens["evaluation"].tolist() == expected
    real = AutoModelForCausalLM.from_pretrained(MODEL).eval()
    ids = tokens["calibration"][None, :30]
    with torch.no_grad():
        assert torch.equal(model.logits(ids), real(ids, use_cache=False).logits)


def test_the_manifest_tells_what_each_text_is():
    assert fetch(evaluation={"replace": {"word1 ": "word2 "}, "join": " "}) == 0
    manifest = read_manifest(TEXTS)
    for name in manifest["files"]:
        verified(TEXTS, name, manifest)
    facts = manifest["evaluation"]
    assert facts["name"] == "b.txt"
    assert (facts["documents"], facts["tokens"], facts["overlap"]) == (1, 120, 0)
    assert (facts["join"], facts["replace"]) == (" ", {"word1 ": "word2 "})
    assert facts["source"]["path"] == "b.txt"
    stored = json.loads(pq.read_schema(TEXTS / "evaluation.parquet").metadata[b"facts"])
    assert stored["sha256"] == facts["sha256"]
    assert manifest["calibration"]["documents"] == 6


def test_documents_are_kept_where_they_have_labels():
    assert fetch() == 0
    rows = pq.read_table(TEXTS / "calibration_documents.parquet").to_pylist()
    assert rows == [
        {"text": row["text"], "label": row["topic"]}
        for row in map(json.loads, Path("a.jsonl").read_text().splitlines())
    ]
    assert not (TEXTS / "evaluation_documents.parquet").exists()


def test_fetching_again_gives_the_same_bytes():
    sections = {"model": {"dtype": "bfloat16"}, "calibration": {"shuffle": 1, "documents": "0-4"}}
    assert fetch(**sections) == 0
    before = hashes()
    shutil.rmtree("data")
    assert fetch(**sections) == 0
    assert hashes() == before


def quote_calibration():
    quoted = json.loads(Path("a.jsonl").read_text().splitlines()[0])["text"]
    others = [f"{number} ".ljust(len(quoted), "x") for number in range(9)]
    Path("b.txt").write_text("\n".join([*others, quoted]))


def without_tokenizer():
    for path in Path("source").glob("tokenizer*"):
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "sections", "message"),
    [
        (None, {"evaluation": {"path": "a.jsonl"}}, "this is the calibration text"),
        (None, {"model": {"path": "nowhere"}}, "expected a Hugging Face folder or a .gguf file, got nowhere"),
        (lambda: Path("b.txt").write_text(""), {}, "fetch.evaluation: the text is empty"),
        (lambda: save_tokenizer("source", [*WORDS[:9], "x", *WORDS[9:]]), {}, "the tokenizer gives token 96"),
        (without_tokenizer, {}, "holds no tokenizer that transformers can load"),
        (lambda: Path("source/tokenizer.json").write_text("[1]"), {}, "holds no tokenizer that transformers can load"),
        (
            lambda: Path("b.txt").write_text("word1 word2 word3 word4 word5"),
            {},
            "fetch.evaluation: the text has 5 tokens, expected at least 16 (evaluate.perplexity.window): use more text",
        ),
        (
            None,
            {"calibration": {"documents": "0-2"}},
            "fetch.calibration: the text has 60 tokens, expected at least 97 (calibration.sequences of calibration.len",
        ),
        (quote_calibration, {}, "10.0% of it stands in the calibration text too, expected at most 1.0%"),
    ],
)
def test_a_failure_is_one_line_and_leaves_the_last_good_outputs(capsys, spoil, sections, message):
    assert fetch() == 0
    before = hashes()
    if spoil:
        spoil()
    capsys.readouterr()
    assert fetch(**sections) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(told) == 1
    assert message in told[0]
    assert hashes() == before
    assert sorted(path.name for path in Path("data").iterdir()) == ["model", "texts"]


def test_a_window_longer_than_the_models_positions_is_told_at_fetch(capsys):
    write_params(Path(), fetch=SOURCES, evaluate={"speed": {"prompt": 3000, "generate": 8}})
    assert run_stage("fetch", main, SECTIONS) == 2
    assert "evaluate.speed.prompt + generate: expected at most 2048, the positions that" in capsys.readouterr().err


def test_a_tokenizer_that_knows_more_than_the_model_is_told_and_taken_where_the_text_does_not_use_it(logged):
    save_tokenizer("source", [*WORDS, "x", "y"])
    assert fetch() == 0
    assert "the tokenizer has 98 tokens, the model embeddings for 96" in logged.text


def test_weights_outside_of_linears_are_told_at_fetch(logged):
    save_tiny(Path("source"), "mixtral")
    save_tokenizer("source")
    assert fetch() == 0
    assert (
        "of the blocks' weights lie outside of nn.Linear: model.layers.0.mlp.experts.gate_up_proj (4, 96, 32)"
        in logged.text
    )
    assert "see solve.max_uncovered" in logged.text
