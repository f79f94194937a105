"""The assemble stage on structured solutions: what it tells, checks and refuses."""

from __future__ import annotations

import shutil

import pytest
import torch

from stages.artifacts.manifest import read_json, read_manifest, write_manifest
from stages.assembly import verify
from stages.assembly.checkpoint import layout_of
from stages.assembly.verify import compare_fresh
from stages.errors import ArchitectureError, ArtifactError
from stages.models import roles
from stages.models.loading.load import load_model
from stages.models.streaming.streamed import StreamedModel
from tests.helpers.structured_solutions import answering, made, write_structured
from tests.helpers.tiny import VOCABULARY, save_tiny

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(3, VOCABULARY, (1, 12), generator=torch.Generator().manual_seed(0))


def solved(workspace, architecture, **solution):
    """A workspace with a structured solution, as after solve, whose fresh process is this one."""
    w = workspace(architecture)
    texts = read_manifest(w.folder / "data/texts")["calibration"]
    write_structured(StreamedModel(w.folder / "data/model", CPU), w.folder / "data/solution", **solution)
    facts = read_manifest(w.folder / "data/solution")
    facts["calibration"] = {"text": texts, "sequences": 6, "length": 16, "seed": 0}
    write_manifest(w.folder / "data/solution", {key: value for key, value in facts.items() if key != "files"})
    return w


def test_a_checkpoint_that_answers_otherwise_is_refused(tmp_path, tokens, monkeypatch):
    save_tiny(tmp_path / "model", "llama")
    pruned, layout, folder = made(tmp_path, "hetero")

    def compare():
        return compare_fresh(folder, pruned, tokens[0], 1e-3, False, layout)

    monkeypatch.setattr(verify, "answers", answering())
    assert compare()["ways"].keys() == {"remote", "imported"}
    assert compare()["max_logit_difference"] < 1e-5
    monkeypatch.setattr(verify, "answers", answering(logits=lambda logits: logits + 0.01))
    with pytest.raises(ArtifactError, match=r"differ by 0\.01\d*: expected at most 0\.001"):
        compare()
    monkeypatch.setattr(verify, "answers", answering(last=lambda token: (token + 1) % VOCABULARY))
    with pytest.raises(ArtifactError, match="generates other tokens than the masked dense model"):
        compare()
    monkeypatch.setattr(verify, "answers", lambda jobs: (_ for _ in ()).throw(ValueError("no such class")))
    with pytest.raises(ArtifactError, match="did not load in a fresh process: no such class"):
        compare()


def test_the_stage_tells_the_layout_and_the_comparison_of_attention_that_heads_are_gone(workspace, monkeypatch):
    monkeypatch.setattr(verify, "answers", answering())
    w = solved(workspace, "qwen2", biases=("attention.o", "mlp.down"), seed=3)
    w.run("assemble", "compare_attention")
    manifest = read_json(w.folder / "data/pruned/pruning_manifest.json")
    layout = manifest["layout"]
    assert (layout["name"], layout["class"]) == ("hetero", "HeteroQwen2ForCausalLM")
    assert layout["parameters"]["pruned"] < layout["parameters"]["dense"]
    assert "import secateur" in layout["load"][0]
    assert "trust_remote_code=True" in layout["load"][1]
    assert 0 < manifest["budget"]["removed"] < 1
    assert manifest["reloaded"]["max_logit_difference"] < 1e-5
    assert "modeling_hetero.py" in manifest["files"]
    told = read_json(w.folder / "metrics/attention.json")
    assert told["state"] == "off"
    assert "heads were removed" in told["reason"]


def test_attention_is_compared_where_all_heads_stay_however_narrow_the_mlp(workspace, monkeypatch):
    monkeypatch.setattr(verify, "answers", answering())
    w = solved(workspace, "llama", heads=False)
    w.run("assemble", "compare_attention")
    assert read_json(w.folder / "data/pruned/pruning_manifest.json")["layout"]["name"] == "hetero"
    assert read_json(w.folder / "metrics/attention.json")["state"] == "measured"


@pytest.mark.parametrize(
    ("architecture", "layout", "solution", "told"),
    [
        ("llama", "uniform", {}, "got 1 to 2: set solve.units.allocation to uniform"),
        ("gpt2", "hetero", {}, "hetero has classes for llama, mistral, qwen2, qwen3, llamagen, got gpt2: use uniform"),
        ("gpt2", "uniform", {"equal": True}, "keep all heads (solve.rules: roles [attention], sparsity 0) or"),
        ("opt", "uniform", {"equal": True}, "embed_dim must be divisible by num_heads"),
        ("gemma", "auto", {"biases": ("mlp.down",)}, "compensate by weights instead of biases"),
        ("mistral", "padded", {"biases": ("mlp.down",)}, "compensate by weights instead of biases or use hetero"),
    ],
)  # fmt: skip
def test_a_layout_that_cannot_be_had_is_refused_with_what_would_work(architecture, layout, solution, told, workspace):
    w = solved(workspace, architecture, **solution)
    w.change(assemble={"layout": layout})
    code, line = w.fail("assemble")
    assert code == 2
    assert told in line
    assert not (w.folder / "data/pruned").exists()


def test_single_weights_leave_no_layout_to_choose(workspace):
    w = workspace("llama", assemble={"layout": "uniform"})
    w.run("extract", "statistics", "solve")
    code, line = w.fail("assemble")
    assert code == 2
    assert "assemble.layout: uniform is for methods that remove heads and channels" in line


def test_linears_of_unknown_roles_and_masks_that_keep_a_removed_unit_are_told(tmp_path, monkeypatch):
    save_tiny(tmp_path / "model", "llama")
    pruned, _, _ = made(tmp_path, "hetero")
    write_structured(pruned.model, pruned.solutions[0].parent, seed=1)
    masks = pruned.masks(1)
    monkeypatch.setattr(
        type(pruned), "masks", lambda self, index: {one: torch.ones_like(k) for one, k in masks.items()}
    )
    with pytest.raises(ArtifactError, match="block 1: a mask keeps weights of removed"):
        pruned.units(1)
    monkeypatch.undo()
    monkeypatch.setitem(roles.SUFFIXES, "mlp.down_proj", "other")
    with pytest.raises(ArchitectureError, match="add the names of the linears to stages/models/roles"):
        layout_of(pruned, "auto", False)


def test_a_checkpoint_with_unequal_blocks_is_a_model_whose_single_weights_can_be_pruned(workspace, tmp_path, tokens):
    w = workspace("qwen3", solve={"method": "sparsegpt", "pattern": "unstructured"})
    (w.folder / "data/model").rename(tmp_path / "model")
    _, layout, folder = made(tmp_path, "hetero", seed=3)
    shutil.move(folder, w.folder / "data/model")
    write_manifest(w.folder / "data/model", {"source": {}})
    w.run("extract", "statistics", "solve", "assemble", "compare_attention")
    pruned = load_model(w.folder / "data/pruned")
    assert [block.self_attn.k_proj.out_features // 16 for block in pruned.model.layers] == (
        layout.values["block_key_value_heads"]
    )
    assert read_json(w.folder / "data/pruned/pruning_manifest.json")["sparsity"] == pytest.approx(0.5, abs=0.01)
