"""Models, texts and wheels that fetch must refuse, naming the file."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save_file

from stages.artifacts.manifest import sha256_of
from tests.bad_input.case import Change, append, bad, cut, edit, edit_json, fresh, good, remove, section, write

FETCH = "stages.fetch"
MODEL, CONFIG, WEIGHTS = "source/model", "source/model/config.json", "source/model/model.safetensors"
INDEX = "source/model/model.safetensors.index.json"
DOWN = "model.layers.1.mlp.down_proj.weight"
TEXT = "source/calibration.jsonl"
DRAWN = "{source: generated, images: 2}"
WHEEL = ".cache/wheels/texts-1.0-py3-none-any.whl"


def weights(edit_tensors: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    """Edit the tensors of the model's file."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        edit_tensors(tensors)
        save_file(tensors, fresh(folder / WEIGHTS), {"format": "pt"})

    return change


def calibration(path: str, content: str | bytes | None = None, options: str = "") -> tuple[Change, ...]:
    """Another calibration text: its path (and content) and other options."""
    setting = edit("source/calibration.jsonl, label_column: topic", f"{path}{options}")
    return (setting,) if content is None else (setting, write(path, content))


def parquet(path: str, **columns: list[Any]) -> Change:
    """Write a Parquet file."""
    return lambda folder: pq.write_table(pa.table(columns), folder / path, compression="none")


def corrupt_page(path: str) -> Change:
    """Spoil a page in the middle of a Parquet file, whose footer stays whole."""

    def change(folder: Path) -> None:
        data = bytearray((folder / path).read_bytes())
        data[4:200] = b"\xff" * 196
        write(path, bytes(data))(folder)

    return change


def model_of(kind: str, **sizes: int) -> Change:
    """A checkpoint of another architecture."""

    def change(folder: Path) -> None:
        import transformers

        config = getattr(transformers, kind)(vocab_size=96, hidden_size=32, num_hidden_layers=2, **sizes)
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / MODEL)

    return change


def wheel(sha256: str | None = None, member: str = "texts/*/*.txt", **members: str | bytes) -> Change:
    """Calibration from a wheel in the cache; the sha256 in params.yaml is its own, or the one given."""

    def change(folder: Path) -> None:
        path = folder / WHEEL
        path.parent.mkdir(parents=True)
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (members or {"a/1": "word3 word2 " * 120}).items():
                archive.writestr(f"texts/{name}.txt", content)
        _from_wheel("texts==1.0", sha256 or sha256_of(path), member)(folder)

    return change


def spoiled_wheel(spoil: Callable[[Path], object]) -> Change:
    """A wheel that was spoiled before its sha256 was taken down."""

    def change(folder: Path) -> None:
        wheel()(folder)
        old = sha256_of(folder / WHEEL)
        spoil(folder)
        edit(old, sha256_of(folder / WHEEL))(folder)

    return change


def _from_wheel(package: str, sha256: str, member: str = "texts/*/*.txt") -> Change:
    return edit(
        "{source: local, path: source/calibration.jsonl, label_column: topic}",
        json.dumps({"source": "wheel", "package": package, "sha256": sha256, "member": member}),
    )


def bad_member(folder: Path) -> None:
    """Spoil the bytes of a member; the wheel's directory stays whole."""
    data = (folder / WHEEL).read_bytes()
    write(WHEEL, data.replace(b"word3 word2 word3", b"word3 word4 word3", 1))(folder)


def images(calibration: str = DRAWN, evaluation: str = DRAWN) -> Change:
    """Sources of images for the model of text."""
    model = "{source: local, path: source/model}"
    return section(f"fetch: {{model: {model}, calibration: {calibration}, evaluation: {evaluation}}}")


HUB = "{source: hub, id: someone/none-such, revision: main}"

CASES = [
    # Sources.
    bad("an unknown source", FETCH, edit("source: local, path: source/model", "source: ftp, path: source/model"),
        r"fetch\.model\.source: .*got 'ftp'", r"'hub'.*'local'.*'wheel'"),
    bad("no source", FETCH, edit("source: local, path: source/model", "path: source/model"), r"fetch\.model.*source"),
    bad("a model that is not there", FETCH, edit("source/model", "source/modle"),
        r"fetch\.model\.path: expected a Hugging Face folder or a \.gguf file, got source/modle"),
    bad("a model that is a text", FETCH, edit("source/model", "source/evaluation.jsonl"),
        r"fetch\.model\.path: expected a Hugging Face folder or a \.gguf file"),
    bad("a hub without network", FETCH, edit("{source: local, path: source/model}", HUB),
        r"fetch\.model: someone/none-such at main did not come from the hub", "source: local"),
    bad("a hub model without a revision", FETCH, edit("{source: local, path: source/model}", "{source: hub, id: a/b}"),
        r"fetch\.model.*revision: .*required"),
    bad("a hub text without network", FETCH, edit("{source: local, path: source/calibration.jsonl, label_column: "
        "topic}", "{source: hub, id: someone/none-such}"), r"fetch\.calibration: someone/none-such did not come"),
    bad("all of C4", FETCH, edit("{source: local, path: source/calibration.jsonl, label_column: topic}",
        "{source: hub, id: allenai/c4}"),
        r"fetch\.calibration\.data_files: allenai/c4 has hundreds of GB: name a file"),
    # Checkpoints.
    bad("no config.json", FETCH, remove(CONFIG), r"config\.json is missing: expected a Hugging Face folder"),
    bad("a config.json that is not JSON", FETCH, write(CONFIG, "{"), r"config\.json is not JSON.*copy or download"),
    bad("a config.json that is a list", FETCH, write(CONFIG, "[1, 2]"), r"config\.json", "object", "list"),
    bad("a config.json in Latin-1", FETCH, write(CONFIG, '{"a": "é"}'.encode("latin-1")), r"config\.json", "(?i)utf-8"),
    bad("a config.json that is a folder", FETCH, (remove(CONFIG), write(CONFIG + "/a", "")), r"config\.json"),
    bad("an architecture that nobody knows", FETCH, edit_json(CONFIG, model_type="nothing"),
        "cannot build a causal language model", "nothing"),
    bad("no architecture", FETCH, write(CONFIG, "{}"), r"fetch\.model", "model_type|causal language model"),
    bad("no blocks", FETCH, edit_json(CONFIG, num_hidden_layers=0), r"fetch\.model|config\.json", "block|layer"),
    bad("fewer blocks than the weights have", FETCH, edit_json(CONFIG, num_hidden_layers=2),
        r"fetch\.model", r"model\.layers\.2\."),
    bad("more blocks than the weights have", FETCH, edit_json(CONFIG, num_hidden_layers=4),
        r"no tensor for model\.layers\.3\."),
    bad("heads that do not divide the width", FETCH, edit_json(CONFIG, num_attention_heads=5), r"fetch\.model",
        "5|head"),
    bad("widths in words", FETCH, edit_json(CONFIG, hidden_size="big"), r"fetch\.model|config\.json",
        "hidden_size|big"),
    bad("another width than the weights'", FETCH, edit_json(CONFIG, intermediate_size=40),
        r"has shape \(\d+, \d+\), expected \(\d+, \d+\)"),
    bad("a quantised checkpoint", FETCH, edit_json(CONFIG, quantization_config={"quant_method": "gptq"}),
        r"is quantised \(gptq\), expected float weights: fetch the model that it was made from"),
    bad("a quantised checkpoint that tells it oddly", FETCH, edit_json(CONFIG, quantization_config="int8"),
        "quantised", "expected float weights"),
    bad("code of its own", FETCH, edit_json(CONFIG, model_type="own", auto_map={"AutoConfig": "configuration_own.Own"}),
        "trust_remote_code"),
    bad("no weights", FETCH, remove(WEIGHTS),
        r"source/model holds no model\.safetensors: expected a Hugging Face folder"),
    bad("pickled weights", FETCH, (remove(WEIGHTS), write(f"{MODEL}/pytorch_model.bin", b"pickle")),
        r"pytorch_model\.bin .* no pickle is ever loaded; .*save_pretrained"),
    bad("weights that were cut off", FETCH, cut(WEIGHTS), r"model\.safetensors", "copy or download it again"),
    bad("weights that are empty", FETCH, write(WEIGHTS, b""), r"model\.safetensors", "copy or download it again"),
    bad("weights that are a web page", FETCH, write(WEIGHTS, "<!doctype html>" * 99), r"model\.safetensors",
        "copy or download it again"),
    bad("a pointer of Git LFS", FETCH, write(WEIGHTS, "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        r"model\.safetensors", "copy or download it again"),
    bad("a header without end", FETCH, write(WEIGHTS, b"\xff" * 64), r"model\.safetensors",
        "copy or download it again"),
    bad("a header that is a list", FETCH, write(WEIGHTS, (2).to_bytes(8, "little") + b"[]"), r"model\.safetensors"),
    bad("a tensor that is missing", FETCH, weights(lambda held: held.pop(DOWN)), f"no tensor for {DOWN}"),
    bad("a tensor too many", FETCH, weights(lambda held: held.update({"model.layers.1.extra": torch.ones(3)})),
        r"fetch\.model", r"model\.layers\.1\.extra"),
    bad("a tensor of whole numbers", FETCH, weights(lambda held: held.update({DOWN: held[DOWN].to(torch.int8)})),
        DOWN, r"int8|I8", "float"),
    bad("a weight that is not a number", FETCH, weights(lambda held: held[DOWN][3].fill_(float("nan"))),
        f"{DOWN} holds weights that are NaN or infinite in float32", "sound checkpoint"),
    bad("a weight that half precision cannot hold", FETCH, (weights(lambda held: held[DOWN][3].fill_(1e6)),
        edit("path: source/model", "path: source/model, dtype: float16")),
        rf"{DOWN} .* infinite in float16: .* another fetch\.model\.dtype"),
    bad("an index that is a list", FETCH, (remove(WEIGHTS), write(INDEX, "[]")), r"index\.json", "object|mapping",
        "list"),
    bad("an index without a map", FETCH, (remove(WEIGHTS), write(INDEX, "{}")), r"index\.json|not whole", "weight_map"),
    bad("an index whose map is a list", FETCH, (remove(WEIGHTS), write(INDEX, '{"weight_map": []}')), r"index\.json"),
    bad("an index that names files outside", FETCH, write(INDEX, '{"weight_map": {"a": "../m.safetensors"}}'),
        r"fetch\.model", r"index\.json|not whole"),
    bad("a shard that is missing", FETCH, write(INDEX, json.dumps({"weight_map": {DOWN: "model-2.safetensors"}})),
        r"model-2\.safetensors", "copy or download it again"),
    bad("no tokenizer", FETCH, (remove(f"{MODEL}/tokenizer.json"), remove(f"{MODEL}/tokenizer_config.json")),
        r"fetch\.model: .*tokenizer.*put the tokenizer's files beside config\.json"),
    bad("a tokenizer that is not JSON", FETCH, write(f"{MODEL}/tokenizer.json", "{"), r"fetch\.model: .*tokenizer"),
    bad("a text that cannot be decoded in the end", FETCH, calibration("source/a.txt", "word2 " * 400 + "\0" * 400),
        r"fetch\.calibration", r"source/a\.txt"),
    bad("a tokenizer of more words than the model", FETCH, edit_json(CONFIG, vocab_size=48), r"fetch\.model|shape"),
    bad("an old GGUF", FETCH, (edit("source/model", "source/model.gguf"), write("source/model.gguf", b"GGUF" * 9)),
        r"source/model\.gguf"),
    bad("a state space model", FETCH, model_of("MambaConfig", state_size=4), r"fetch\.model", "Mamba|block",
        "attention"),
    bad("a dtype of whole numbers for the model", FETCH, edit("path: source/model", "path: source/model, dtype: int8"),
        r"fetch\.model.*dtype: .*got 'int8'"),
    # Texts.
    bad("a text that is not there", FETCH, calibration("source/none.txt"),
        r"fetch\.calibration\.path: source/none\.txt is not there: expected a \.txt, \.jsonl, \.parquet file"),
    bad("a text of another kind", FETCH, calibration("source/a.pdf", "%PDF"),
        r"fetch\.calibration\.path: expected a \.txt, \.jsonl, \.parquet file.*got source/a\.pdf"),
    bad("an empty text", FETCH, calibration("source/a.txt", ""), r"fetch\.calibration: the text is empty: expected"),
    bad("a text of blanks", FETCH, calibration("source/a.txt", " \n\t\n"), r"fetch\.calibration: the text is empty"),
    bad("a folder without texts", FETCH, calibration("source/model"),
        r"fetch\.calibration\.path: .*holds no \.txt file"),
    bad("random bytes as a text", FETCH, calibration("source/a.txt", bytes(range(256)) * 40),
        r"fetch\.calibration", r"source/a\.txt", "text"),
    bad("a picture as a text", FETCH, calibration("source/a.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(4000)),
        r"fetch\.calibration", r"source/a\.txt", "text"),
    bad("a text of five tokens", FETCH, calibration("source/a.txt", "word6 word2 word3 word4 word5"),
        r"fetch\.calibration", "5 tokens"),
    bad("a line that is not JSON", FETCH, append(TEXT, "\n{"),
        r"fetch\.calibration: source/calibration\.jsonl, line 41: expected a JSON object .*got what is not JSON"),
    bad("a line without the column", FETCH, append(TEXT, '\n{"body": "a", "topic": "b"}'),
        r"fetch\.calibration: row 40 of source/calibration\.jsonl has no text: it has body, topic"),
    bad("a line that is a list", FETCH, append(TEXT, '\n["a"]'),
        r"row 40 of source/calibration\.jsonl has no text: it"),
    bad("a row of null", FETCH, append(TEXT, '\n{"text": null, "topic": "a"}'),
        r"fetch\.calibration: row 40 .*holds null as text, expected text: take it out, or set"),
    bad("a row of a number", FETCH, append(TEXT, '\n{"text": 5, "topic": "a"}'),
        r"row 40 .*holds 5 \(int\) as text, expected text"),
    bad("JSON lines in Latin-1", FETCH, append(TEXT, '\n{"text": "é", "topic": "a"}'.encode("latin-1")),
        r"source/calibration\.jsonl", "line 41", "UTF-8"),
    bad("a label that is not there", FETCH, calibration(TEXT, options=", label_column: subject"),
        r"fetch\.calibration: row 0 of source/calibration\.jsonl has no subject: it has text, topic"),
    bad("a lone surrogate", FETCH, append(TEXT, '\n{"text": "\\ud800", "topic": "a"}'),
        r"fetch\.calibration: the text holds what is no Unicode character"),
    bad("a Parquet file that is none", FETCH, calibration("source/a.parquet", "PAR1"),
        r"source/a\.parquet is no readable Parquet file"),
    bad("a Parquet file without the column", FETCH, (*calibration("source/a.parquet"), parquet("source/a.parquet",
        body=["a"])), r"fetch\.calibration: source/a\.parquet has no column text: it has body"),
    bad("a Parquet column of numbers", FETCH, (*calibration("source/a.parquet"), parquet("source/a.parquet",
        text=[1, 2])), r"row 0 .*holds 1 \(int\) as text, expected text"),
    bad("corrupt pages of Parquet", FETCH, (*calibration("source/a.parquet"), parquet("source/a.parquet",
        text=[f"word{n} word2" for n in range(99)]), corrupt_page("source/a.parquet")), r"source/a\.parquet"),
    bad("the evaluation text as calibration", FETCH, calibration("source/evaluation.jsonl"),
        r"fetch\.evaluation: this is the calibration text: take another split, another file"),
    bad("texts that overlap", FETCH, lambda folder: append("source/evaluation.jsonl", "\n" + (
        folder / TEXT).read_text().splitlines()[0])(folder), r"fetch\.evaluation: \d+\.\d% of it stands in the calib",
        r"at most 1\.0% \(fetch\.max_overlap\)"),
    bad("an overlap above one", FETCH, edit("\ncalibration:\n", "  max_overlap: 5\n\ncalibration:\n"),
        r"fetch\.max_overlap: .*got 5"),
    bad("more documents than there are", FETCH, calibration(TEXT, options=", documents: '0-99'"),
        r"fetch\.calibration\.documents", r"\b(39|40)\b", r"\b(99|0-99)\b"),
    bad("documents as a half-open list", FETCH, calibration(TEXT, options=", documents: [0, 20]"),
        r"fetch\.calibration\S*documents", '"?0-19"?'),
    bad("documents the wrong way round", FETCH, calibration(TEXT, options=", documents: '20-10'"),
        r"fetch\.calibration\S*documents", "20-10"),
    bad("a seed of a shuffle in words", FETCH, calibration(TEXT, options=", shuffle: yes please"),
        r"fetch\.calibration\S*shuffle: .*got 'yes please'"),
    bad("a replacement that is a list", FETCH, calibration(TEXT, options=", replace: [a, b]"),
        r"fetch\.calibration\S*replace: .*got \['a', 'b'\]"),
    # Wheels.
    bad("a wheel without a version", FETCH, _from_wheel("texts", "0" * 64), r"fetch\.calibration\S*package: ",
        "'texts'",
        "=="),
    bad("a package that begins with a dash", FETCH, _from_wheel("--index-url==1", "0" * 64),
        r"fetch\.calibration\S*package: .*--index-url==1"),
    bad("a version that begins with a dash", FETCH, _from_wheel("texts==1 --pre", "0" * 64),
        r"fetch\.calibration\S*package: "),
    bad("a sha256 that is too short", FETCH, _from_wheel("texts==1.0", "abc"), r"fetch\.calibration\S*sha256: .*'abc'"),
    bad("a sha256 of another wheel", FETCH, wheel(sha256="0" * 64),
        r"texts-1\.0-py3-none-any\.whl: expected sha256 0{64}, got [0-9a-f]{64}: delete the file"),
    bad("a member that is not there", FETCH, wheel(member="texts/*.parquet"),
        r"texts-1\.0\S* has no member texts/\*\.parquet: it has, for example, texts/a/1\.txt"),
    bad("a wheel that is no archive", FETCH, spoiled_wheel(write(WHEEL, "no archive")), r"texts-1\.0\S* is no wheel"),
    bad("a wheel that was cut off", FETCH, spoiled_wheel(cut(WHEEL)), r"texts-1\.0\S*\.whl"),
    bad("a wheel with a corrupt member", FETCH, spoiled_wheel(bad_member), r"texts-1\.0\S*\.whl",
        r"texts/a/1\.txt|CRC"),
    # Images.
    bad("images beside a text", FETCH, images(evaluation="{source: local, path: source/evaluation.jsonl}"),
        r"fetch\.evaluation\.source: expected images, generated beside .*: generated, got local"),
    bad("images for a model of text", FETCH, images(),
        r"fetch\.calibration\.source: expected hub, local or wheel, since fetch\.model is a model of text, got gen"),
    bad("guidance away from the class", FETCH, images("{source: generated, images: 2, guidance_scale: 0.5}"),
        r"fetch\.calibration\S*guidance_scale: .*greater than or equal to 1, got 0\.5"),
    bad("half a batch that is guided by nothing", FETCH, images("{source: generated, images: 2, guidance_scale: 1, "
        "guided_codes: 8}"), r"fetch\.calibration\.guided_codes: guidance_scale 1 guides no code, got 8"),
    bad("images of a class from behind", FETCH, images('{source: images, path: source, images: "-2--1"}'),
        r"fetch\.calibration\.images: images of a class are counted from 0, got -2--1"),
    # Good ones.
    good("a text in Latin-1", FETCH, *calibration("source/a.txt", "word6 café word2 ".encode("latin-1") * 80)),
    good("a range of documents", FETCH, *calibration(TEXT, options=', documents: "0-19", shuffle: 1')),
    good("a range of documents as a mapping", FETCH, *calibration(TEXT, options=", documents: {from: 0, to: 19}")),
    good("texts in a wheel", FETCH, wheel()),
    good("another dtype", FETCH, edit("path: source/model", "path: source/model, dtype: bfloat16")),
    good("a section of fetch in one line", FETCH, section(
        "fetch: {model: {source: local, path: source/model}, calibration: {source: local, path: "
        "source/calibration.jsonl}, evaluation: {source: local, path: source/evaluation.jsonl}}")),
]  # fmt: skip
