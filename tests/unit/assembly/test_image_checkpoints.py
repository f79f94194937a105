"""An image model goes through all stages by methods of every family, and its checkpoint draws images elsewhere."""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path

import pytest
import torch

from stages.artifacts.linears import LINEARS
from stages.artifacts.manifest import read_json, read_manifest, sha256_of, verify_all
from stages.artifacts.places import MODEL, PRUNED, PRUNING_MANIFEST, TEXTS
from stages.artifacts.tokens import read_tokens
from stages.models.classes.llamagen import CLASSES as CLASS_OF
from stages.models.classes.registration import code_files
from stages.models.imaging.tokenizer import load_image_tokenizer
from stages.models.loading.load import load_model
from stages.runtime.stage import run_stage
from stages.walk.backward import calibration_windows
from tests.helpers.images import CODES, SEQUENCE, image_project, write_image_params
from tests.helpers.llamagen import CLASSES
from tests.helpers.llamagen import CODES as VOCABULARY

BEFORE = ("fetch", "extract", "statistics")
ATTENTION = {"roles": ["attention.q", "attention.k"], "method": "attention_gd", "settings": {"steps": 2}}


def run(*names):
    """Run stages; gives the exit code of the last."""
    for name in names:
        module = import_module(f"stages.{name}")
        code = run_stage(name, module.main, module.SECTIONS)
    return code


@pytest.fixture(scope="module")
def fetched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        image_project(folder)
        assert run(*BEFORE) == 0
        yield folder


@pytest.fixture
def project(fetched, monkeypatch):
    monkeypatch.chdir(fetched)
    shutil.rmtree("data/pruned", ignore_errors=True)


def prune(**sections):
    """Solve and assemble, and compare attention matrices; gives the manifest of the checkpoint."""
    write_image_params(Path(), **sections)
    assert run("solve", "assemble", "compare_attention") == 0
    facts = read_json(PRUNING_MANIFEST)
    verify_all(PRUNED, facts)
    for name in ("config.json", "model.safetensors"):
        assert sha256_of(PRUNED / "image_tokenizer" / name) == facts["files"][f"image_tokenizer/{name}"]
    for code in code_files(CLASS_OF["llamagen"][1]):
        assert facts["files"][code.name] == sha256_of(code)
    assert "modeling_llamagen." in read_json(PRUNED / "config.json")["auto_map"]["AutoModelForCausalLM"]
    assert facts["layout"]["class"] == "LlamaGenForImageGeneration"
    assert "trust_remote_code=True" in facts["layout"]["load"][1]
    assert facts["source"]["images"] == {"classes": CLASSES, "codes": CODES, "sequence": SEQUENCE}
    return facts


def drawn(folder=PRUNED):
    model = load_model(folder, device="cpu")
    torch.manual_seed(0)
    codes = model.generate(class_labels=torch.arange(CLASSES), guidance_scale=2.0)
    assert codes.shape == (CLASSES, CODES)
    assert int(codes.max()) < VOCABULARY
    load_image_tokenizer(folder, "cpu")
    return codes


@pytest.mark.usefixtures("project")
def test_calibration_is_whole_images_for_every_stage():
    stored = read_tokens(TEXTS, "calibration", read_manifest(TEXTS)).view(-1, SEQUENCE).tolist()
    rows = calibration_windows().tolist()
    assert len(rows) == 8
    assert all(row in stored for row in rows)
    assert all(row[0] >= VOCABULARY and max(row[1:]) < VOCABULARY for row in rows)


@pytest.mark.usefixtures("project")
def test_single_weights_and_attention_matrices():
    facts = prune(solve={"method": "wanda", "sparsity": 0.5, "rules": [ATTENTION]})
    rows = LINEARS.read(Path("data/solution/linears.parquet"))
    assert {row["method"] for row in rows} == {"wanda", "attention_gd"}
    assert all(2 * row["kept"] == row["weights"] for row in rows)
    assert facts["layout"]["name"] == "dense"
    assert read_json(Path("metrics/attention.json"))["state"] == "measured"
    assert not torch.equal(drawn(), drawn(MODEL))


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("solve", "layout", "biases"),
    [
        ({"method": "newton"}, "hetero", False),
        ({"method": "flap"}, "hetero", True),
        ({"method": "d_gating"}, "auto", False),
    ],
    ids=lambda value: value.get("method") if isinstance(value, dict) else "",
)
def test_heads_and_channels(solve, layout, biases):
    methods = {"d_gating": {"steps": 4, "penalty": 40.0}} if solve["method"] == "d_gating" else {}
    facts = prune(solve={**solve, "sparsity": 0.3}, methods=methods, assemble={"layout": layout})
    assert facts["layout"]["name"] in (layout, "hetero", "uniform")
    assert set(facts["reloaded"]["ways"]) == {"remote", "imported"}
    assert facts["layout"]["parameters"]["pruned"] < facts["layout"]["parameters"]["dense"]
    config = json.loads((PRUNED / "config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == "llamagen"
    assert bool(config.get("output_biases")) == biases
    drawn()


def test_what_lost_units_is_pruned_by_weights_but_not_of_units(fetched, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    config = shutil.copytree(fetched / "source", tmp_path / "source") / "config.json"
    values = json.loads(config.read_text(encoding="utf-8"))
    widths = {"block_key_value_heads": [4, 4], "block_channels": 2 * [values["intermediate_size"]]}
    config.write_text(json.dumps(values | widths), encoding="utf-8")
    source = {"source": "local", "path": "source"}
    drawing = {"source": "generated", "images": 1, "batch": 5, "device": "cpu"}
    fetch = {"model": source, "calibration": drawing, "evaluation": {**drawing, "seed": 1}}
    write_image_params(Path(), fetch=fetch, solve={"method": "newton", "sparsity": 0.2})
    assert run(*BEFORE) == 0
    capsys.readouterr()
    assert run("solve") == 2
    assert "llamagen has lost heads or channels before, and newton cannot" in capsys.readouterr().err
    write_image_params(Path(), fetch=fetch, solve={"method": "slicegpt", "sparsity": 0.2})
    assert run("solve") == 2
    assert "slicegpt slices llama, mistral, qwen2, qwen3" in capsys.readouterr().err
    write_image_params(Path(), fetch=fetch, solve={"method": "magnitude", "sparsity": 0.5})
    assert run("solve", "assemble") == 0
    drawn()


def test_half_precision_passes_too(fetched, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    model = {"source": "local", "path": str(fetched / "source"), "dtype": "bfloat16"}
    values = {"fetch": {"model": model}, "calibration": {"sequences": 4, "length": 9}}
    write_image_params(Path(), **values, evaluate={"attention": {"sequences": 2, "length": 9}})
    assert run(*BEFORE) == 0
    prune(**values, solve={"method": "admm"}, evaluate={"attention": {"sequences": 2, "length": 9}})
    assert load_model(PRUNED, device="cpu").dtype == torch.bfloat16
    drawn()
