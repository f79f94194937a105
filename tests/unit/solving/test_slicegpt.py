"""Laws of slicing: rotations change nothing, widths meet their budget, checkpoints load anywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.errors import ParameterError
from stages.linalg.principal import principal
from stages.methods.rotation.slicegpt import SliceGpt
from stages.models.loading.load import load_model
from stages.models.streaming.slicing import project
from stages.models.streaming.streamed import StreamedModel
from stages.solving.rotation.walk import sizes_of
from stages.walk.backward import calibration_windows
from stages.walk.bases import read_lost
from tests.helpers.tiny import VOCABULARY, save_tiny
from tests.reference.slicegpt import sliced_logits

SLICEABLE = ("llama", "llama_bias", "mistral", "qwen2", "qwen3")
WITH_HEAD = pytest.mark.parametrize(
    ("architecture", "head"), [*((name, False) for name in SLICEABLE), ("llama", True), ("llama_bias", True)]
)
EVERY_ARCHITECTURE = pytest.mark.parametrize("architecture", SLICEABLE)
TOKENS = torch.randint(3, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(3))


def sliced(workspace, architecture, sparsity, **settings):
    """A workspace whose data/pruned is a sliced model."""
    found = workspace(architecture, solve={"method": "slicegpt", "sparsity": sparsity}, methods={"slicegpt": settings})
    found.run("extract", "statistics", "solve", "assemble")
    return found.folder / "data" / "pruned"


def logits(model):
    with torch.no_grad():
        return model(TOKENS, use_cache=False).logits


def test_a_basis_is_orthonormal_and_loses_the_discarded_eigenvalues():
    x = torch.randn(50, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gram = x.T @ x / 50
    for kept in (1, 5, 12):
        basis, lost = principal(gram, kept)
        torch.testing.assert_close(basis.T @ basis, torch.eye(kept, dtype=torch.float64))
        error = (x - project(x, basis)).square().sum() / x.square().sum()
        assert lost == pytest.approx(float(error), abs=1e-12)
        other = torch.linalg.qr(torch.randn(12, kept, dtype=torch.float64))[0]
        assert (x - project(x, other)).square().sum() / x.square().sum() >= error - 1e-12


@WITH_HEAD
def test_slicing_nothing_away_gives_the_dense_logits(architecture, head, workspace):
    folder = sliced(workspace, architecture, 0.0, amount="width", head=head)
    torch.testing.assert_close(logits(load_model(folder)), logits(load_model(Path("data/model"))), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "signal"), [*((name, "states") for name in SLICEABLE), ("llama", "normed"), ("qwen3", "normed")]
)
def test_the_walk_is_the_slow_version(architecture, signal, workspace):
    """The same bases and logits as whole-model forwards with explicit sliced weights, in float64."""
    folder = sliced(workspace, architecture, 0.3, amount="width", signal=signal)
    windows = calibration_windows().long()
    expected, lost = sliced_logits(AutoModelForCausalLM.from_pretrained("data/model"), windows, TOKENS, 22, signal)
    torch.testing.assert_close(logits(load_model(folder)).double(), expected, atol=1e-3, rtol=1e-3)
    found = [
        value
        for index in range(3)
        for value in read_lost(Path(f"data/solution/block_{index:03d}.safetensors")).values()
    ]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(lost), rtol=1e-3, atol=1e-6)


@WITH_HEAD
def test_the_budget_of_parameters_is_met_and_no_more(architecture, head, workspace):
    folder = sliced(workspace, architecture, 0.2, head=head)
    manifest = json.loads((folder / "pruning_manifest.json").read_text())
    parameters = manifest["layout"]["parameters"]
    assert parameters["pruned"] == sum(value.numel() for value in load_model(folder).parameters())
    assert parameters["dense"] == sum(value.numel() for value in load_model(Path("data/model")).parameters())
    blocks = load_model(folder).model.layers
    dense = load_model(Path("data/model")).model.layers
    norms = sum(value.numel() for name, value in dense.named_parameters() if name.endswith("layernorm.weight"))
    kept, whole = (sum(value.numel() for value in one.parameters()) for one in (blocks, dense))
    model = StreamedModel(Path("data/model"), torch.device("cpu"))
    sizes, width = sizes_of(model), blocks[0].self_attn.q_proj.in_features
    extra = 2 * 3 * 16 if architecture == "qwen3" else 0  # norms of queries and keys
    assert sizes.dense == whole - norms - extra
    assert sizes.kept(width, head) == kept - extra
    assert sizes.kept(width, head) <= 0.8 * sizes.dense < sizes.kept(width + 1, head)
    biases = sum(value.numel() for name, value in blocks.named_parameters() if name.endswith("bias"))
    assert manifest["linears"]["kept"] == kept - extra - biases


def test_widths_are_multiples_and_budgets_that_cannot_be_met_are_told(tmp_path):
    save_tiny(tmp_path, "llama")
    sizes = sizes_of(StreamedModel(tmp_path, torch.device("cpu")))
    assert SliceGpt(amount="width", round=8).width(sizes, 0.3) == 16
    assert SliceGpt(amount="width").width(sizes, 0.0) == sizes.width
    with pytest.raises(ParameterError, match=r"solve\.sparsity: 0\.99 of the width leaves no width .* at most 0\.750"):
        SliceGpt(amount="width", round=8).width(sizes, 0.99)
    with pytest.raises(ParameterError, match=f"round: expected at most the hidden width {sizes.width}, got 1000"):
        SliceGpt(round=1000).width(sizes, 0.2)


def test_an_architecture_without_rms_norms_is_refused(workspace):
    w = workspace("opt", solve={"method": "slicegpt", "sparsity": 0.2})
    w.run("extract", "statistics")
    code, error = w.fail("solve")
    assert code == 2
    assert "slicegpt slices llama, mistral, qwen2, qwen3" in error


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"inputs": "dense"}, "expected pruned, got dense"),
        ({"pattern": "2:4"}, "solve.pattern: slicegpt slices all blocks to one width"),
        ({"refit": "cg"}, "solve.refit"),
        ({"units": {"choice": "pruned"}}, "solve.units: slicegpt slices"),
        ({"rules": [{"blocks": [0], "sparsity": 0.1}]}, "solve.rules: slicegpt slices"),
    ],
)
def test_settings_that_mean_nothing_to_it_are_refused(section, told, workspace):
    w = workspace("llama", solve={"method": "slicegpt", "sparsity": 0.2, **section})
    code, error = w.fail("solve")
    assert code == 2
    assert told in error


def test_a_layout_of_others_is_refused(workspace):
    w = workspace("llama", solve={"method": "slicegpt", "sparsity": 0.2}, assemble={"layout": "padded"})
    w.run("extract", "statistics", "solve")
    assert "assemble.layout: slicegpt has its own, sliced: expected auto, got padded" in w.fail("assemble")[1]


def test_it_runs_in_bfloat16(workspace):
    w = workspace("llama", solve={"method": "slicegpt", "sparsity": 0.2}, compute={"dtype": "bfloat16"})
    w.run("extract", "statistics", "solve", "assemble", "compare_attention")
    assert json.loads(Path("metrics/attention.json").read_text())["state"] == "off"


def test_a_killed_walk_goes_on_with_the_same_bytes(workspace, monkeypatch):
    w = workspace("llama", solve={"method": "slicegpt", "sparsity": 0.2})
    w.run("extract", "statistics", "solve")
    before = w.bytes_of("solution")
    for path in sorted(Path(".cache/blocks/slice").glob("*.safetensors"), key=lambda path: path.stat().st_mtime)[1:]:
        path.unlink()
    w.run("solve")
    assert w.bytes_of("solution") == before


@EVERY_ARCHITECTURE
def test_it_generates_as_it_predicts(architecture, workspace):
    """Greedy text with a cache is what the logits without one say; plain AutoModelForCausalLM loads it."""
    model = AutoModelForCausalLM.from_pretrained(sliced(workspace, architecture, 0.2)).eval()
    told = model.generate(TOKENS[:1], max_new_tokens=6, do_sample=False, eos_token_id=None)
    for length in range(TOKENS.shape[1], told.shape[1]):
        with torch.no_grad():
            assert int(model(told[:, :length], use_cache=False).logits[0, -1].argmax()) == int(told[0, length])


def test_it_cannot_be_a_rule(workspace):
    rules = [{"blocks": [0], "method": "slicegpt", "settings": {}}]
    w = workspace("llama", solve={"method": "magnitude", "sparsity": 0.2, "rules": rules})
    w.run("extract", "statistics")
    assert "slicegpt slices the whole model" in w.fail("solve")[1]


def test_it_loads_without_this_package_by_its_own_code(workspace, tmp_path):
    script = (
        "import sys, torch; sys.modules['stages'] = None\n"
        "from transformers import AutoModelForCausalLM\n"
        "tokens = torch.load(sys.argv[1])\n"
        "for folder in sys.argv[2:]:\n"
        "    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()\n"
        "    with torch.no_grad(): torch.save(model(tokens, use_cache=False).logits, folder + '.pt')\n"
    )
    tokens, expected = tmp_path / "tokens.pt", {}
    torch.save(TOKENS, tokens)
    for architecture in ("llama", "qwen3"):
        folder = tmp_path / architecture
        shutil.copytree(sliced(workspace, architecture, 0.2), folder)
        expected[folder] = logits(load_model(folder))
        shutil.rmtree(tmp_path / "data")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-c", script, str(tokens), *map(str, expected)],
        check=True, cwd=tmp_path, env={**environment, "HF_MODULES_CACHE": str(tmp_path / "modules")},
    )  # fmt: skip
    for folder, answer in expected.items():
        assert torch.equal(torch.load(f"{folder}.pt"), answer)
