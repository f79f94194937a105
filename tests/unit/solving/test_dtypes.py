"""Every method on checkpoints in float32, bfloat16 and float16, from extract to a checkpoint that is measured.

A folder with extract and statistics done serves all methods, and layouts are loaded again in this process: each
method takes a fraction of a second.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from stages import assemble, compare_attention, evaluate, extract, measure_speed, solve, statistics
from stages.artifacts.linears import LINEARS
from stages.artifacts.manifest import write_manifest
from stages.artifacts.packing import unpack
from stages.artifacts.places import MODEL, PRUNED, PRUNING_MANIFEST, SOLUTION, STATISTICS, block_file
from stages.artifacts.tensorfile import TensorFile, read_tensors
from stages.assembly import verify
from stages.measuring.speed import comparison
from stages.methods import registry
from stages.models.export.fresh import Answer, _answer
from stages.models.streaming.stepwise import Stop
from stages.models.streaming.streamed import StreamedModel
from stages.runtime.stage import run_stage
from stages.walk.ordered import OutputErrorSum
from stages.walk.pruned import read_weights
from stages.walk.statistics import read_statistics
from tests.helpers.tiny import CONFIGS, save_tokens, tiny_model, write_params

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
STAGES = {
    "extract": extract, "statistics": statistics, "solve": solve, "assemble": assemble,
    "compare_attention": compare_attention, "measure_speed": measure_speed,
}  # fmt: skip
SINKS = ("attention.o", "mlp.down")
MEASURED = {
    "perplexity": {"window": 16, "stride": 16},
    "attention": {"sequences": 2, "length": 12},
    "speed": {"prompt": 8, "generate": 3, "repeats": 1, "warmup": 0, "always": True},
}


def cases():
    """Each method with its section `solve` and its settings."""
    for name in registry.names():
        room = registry.find(name).family
        if room == "attention":
            rule = {"roles": ["attention.q", "attention.k"], "method": name, "settings": {"steps": 12, "batch": 4}}
            yield name, {"method": "wanda", "rules": [rule]}, {}
        elif room == "gates":
            for weights in ("frozen", "trained", "lora"):
                settings = {"steps": 4, "weights": weights}
                yield f"{name} {weights}", {"method": name, "sparsity": 0.3}, {name: settings}
        else:
            yield name, {"method": name, "sparsity": 0.5 if room == "linear" else 0.3}, {}


CASES = {name: (section, settings) for name, section, settings in cases()}


class Project:
    """A folder with a tiny model in one dtype, extract and statistics done; every solution is made in it.

    disturb: changes the model before it is saved.
    """

    def __init__(self, folder: Path, stored: str, disturb=None, **sections) -> None:
        self.folder, self.stored, self.sections = folder, DTYPES[stored], sections
        save_tokens(folder / "data/texts")
        model = tiny_model("two blocks", self.stored)
        with torch.no_grad():
            (disturb or (lambda model: None))(model)
        model.save_pretrained(folder / "data/model")
        write_manifest(folder / "data/model", {"source": {"source": "local", "path": "tiny"}})

    @contextmanager
    def entered(self):
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            yield self
        finally:
            os.chdir(before)

    def run(self, *names, **sections) -> None:
        for name in names:
            assert self.code(name, **sections) == 0

    def code(self, name, **sections) -> int:
        write_params(self.folder, **self.sections, **sections)
        return run_stage(name, STAGES[name].main, STAGES[name].SECTIONS)


@pytest.fixture(scope="module")
def projects(tmp_path_factory):
    made = {}

    def find(stored, **sections):
        key = json.dumps([stored, sections], sort_keys=True)
        if key not in made:
            made[key] = Project(tmp_path_factory.mktemp("dtype"), stored, **sections)
            with made[key].entered() as project:
                project.run("extract", "statistics")
        return made[key]

    return find


@pytest.fixture(scope="module", autouse=True)
def two_blocks():
    with pytest.MonkeyPatch.context() as patch:
        name, sizes = CONFIGS["llama_bias"]
        patch.setitem(CONFIGS, "two blocks", (name, sizes | {"num_hidden_layers": 2}))
        yield


@pytest.fixture(autouse=True)
def loaded_here(monkeypatch):
    """Checkpoints are loaded again in this process; tests/unit/assembly/test_layout_stage.py has the fresh one."""

    def answers(jobs):
        found = [_answer({**vars(job), "way": "imported"}) for job in jobs]
        return [Answer(one["sequence"].tolist(), one["logits"]) for one in found]

    monkeypatch.setattr(verify, "answers", answers)
    monkeypatch.setattr(comparison, "peak_in_process", lambda *_: 100)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("stored", DTYPES)
def test_every_method_prunes_a_checkpoint_of_every_dtype(name, stored, projects):
    section, settings = CASES[name]
    with projects(stored).entered() as project:
        project.run("solve", "assemble", solve=section, methods=settings)
        check_checkpoint(project.stored)


@pytest.mark.parametrize("name", [name for name in CASES if name != "slicegpt"])
@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_errors_told_are_those_of_the_rounded_weights(name, stored, projects):
    """Blocks on the dense model's inputs, Gram matrices in float64."""
    section, settings = CASES[name]
    gates = registry.find(name.split()[0]).family == "gates"
    section = {**section, "inputs": "dense", **({} if gates else {"target": "dense"})}
    with projects(stored, statistics={"dtype": "float64"}).entered() as project:
        project.run("solve", "assemble", solve=section, methods=settings)
        check_checkpoint(project.stored)
        check_errors()


@pytest.mark.parametrize("name", ["admm", "attention_gd", "attention_iht", "obs_units", "d_gating frozen", "slicegpt"])
@pytest.mark.parametrize(
    ("stored", "computed"),
    [("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16"), ("float32", "float16")],
)
def test_the_dtype_of_the_computation_may_be_another(name, stored, computed, projects):
    section, settings = CASES[name]
    with projects(stored, compute={"dtype": computed}).entered() as project:
        project.run("solve", "assemble", solve=section, methods=settings)
        check_checkpoint(project.stored)


@pytest.mark.parametrize("name", ["admm", "flap"])
@pytest.mark.parametrize("stored", DTYPES)
def test_checkpoints_of_every_dtype_are_measured(name, stored, projects):
    section, settings = CASES[name]
    with projects(stored).entered() as project:
        names = ("solve", "assemble", "measure_speed", "compare_attention")
        project.run(*names, solve=section, methods=settings, evaluate={"tasks": {"names": []}, **MEASURED})
        assert json.loads(Path("metrics/speed.json").read_text())["state"] == "measured"
        if name == "admm":
            assert json.loads(Path("metrics/attention.json").read_text())["state"] == "measured"
        for which in ("dense", "pruned"):
            main = partial(evaluate.main, which=which)
            assert run_stage("evaluate", main, evaluate.SECTIONS, cost_name="evaluate_x") == 0
            assert 50 < json.loads(Path(f"metrics/{which}.json").read_text())["perplexity"]["value"] < 200


def test_hidden_states_in_parquet_are_the_same(projects):
    found = {}
    for form in ("safetensors", "parquet"):
        for stored in ("bfloat16", "float16"):
            with projects(stored, extract={"format": form}).entered() as project:
                project.run("solve", solve={"method": "sparsegpt"})
                found[form, stored] = [read_tensors(SOLUTION / block_file(index)) for index in range(2)]
    for stored in ("bfloat16", "float16"):
        for one, other in zip(found["safetensors", stored], found["parquet", stored], strict=True):
            assert all(torch.equal(one[name], other[name]) for name in one)


def check_checkpoint(stored):
    """Its dtype, finite; where single weights go, exact counts and true zeros."""
    tensors = {name: one for path in PRUNED.glob("model*.safetensors") for name, one in read_tensors(path).items()}
    assert {tensor.dtype for tensor in tensors.values()} == {stored}
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())
    rows = {row["linear"]: row for row in LINEARS.read(SOLUTION / LINEARS.name)}
    if json.loads(PRUNING_MANIFEST.read_text())["layout"]["name"] != "dense":
        return
    shapes = json.loads(TensorFile(PRUNED / "masks.safetensors").metadata["shapes"])
    for name, packed in read_tensors(PRUNED / "masks.safetensors").items():
        keep, row = unpack(packed, tuple(shapes[name])), rows[name.removesuffix(".weight")]
        assert int(keep.sum()) == row["kept"] == row["weights"] // 2
        assert not tensors[name][~keep].any()
        assert not tensors[name][~keep].signbit().any()


def check_errors():
    """Each row's relative error is that of the weights and biases in the solution.

    But for linears whose rows went with units: of these the row tells what else was changed.
    """
    model, rows = StreamedModel(MODEL, CPU), {row["linear"]: row for row in LINEARS.read(SOLUTION / LINEARS.name)}
    for index in range(model.blocks):
        inputs = {name: one for one in read_statistics(STATISTICS / block_file(index), CPU) for name in one.linears}
        solved = read_weights(SOLUTION / block_file(index), model.linears(index), model)
        for linear in model.linears(index):
            row, one, dense = rows[linear.name], inputs[linear.name], model.weights.stored(linear).double()
            if row["pattern"] == "units" and linear.role not in SINKS:
                continue
            away, shift = solved[linear.tensor].double() - dense, torch.zeros(len(dense), dtype=torch.float64)
            if f"{linear.name}.bias" in solved:
                shift = solved[f"{linear.name}.bias"].double() - model.weights.stored_bias(linear).double()
            lost = (away @ one.gram * away).sum() + 2 * shift @ (away @ one.mean) + shift.square().sum()
            assert row["relative_error"] == pytest.approx(float(lost / (dense @ one.gram * dense).sum()), rel=1e-6)


def test_kept_weights_that_float16_makes_zero_are_kept(tmp_path):
    """The query's weights are so small that few of their bits are left."""

    def disturb(model):
        model.model.layers[0].self_attn.q_proj.weight.mul_(2.0**-21)

    with Project(tmp_path, "float16", disturb).entered() as project:
        project.run("extract", "statistics", "solve", "assemble", solve={"method": "admm"})
        check_checkpoint(torch.float16)
        keep = LINEARS.read(SOLUTION / LINEARS.name)[0]
        weight = read_tensors(PRUNED / "model.safetensors")[f"{keep['linear']}.weight"]
        assert int((weight != 0).sum()) < keep["kept"]


@pytest.mark.parametrize(("method", "linear"), [("admm", "self_attn.q_proj"), ("obs_units", "mlp.down_proj")])
def test_weights_beyond_what_float16_holds_are_told(method, linear, tmp_path, capsys):
    """The dense ones just fit, and the model runs in float32; refitted ones are larger."""

    def disturb(model):
        weight = model.model.layers[1].get_submodule(linear).weight
        weight.copy_(60000 * weight.sign())

    with Project(tmp_path, "float16", disturb, compute={"dtype": "float32"}).entered() as project:
        project.run("extract", "statistics", solve={"method": method})
        assert project.code("solve", solve={"method": method, "inputs": "dense", "target": "dense"}) == 2
    (told,) = [line for line in capsys.readouterr().err.splitlines() if ": error: " in line]
    assert f"block 1: the solved weights of model.layers.1.{linear} reach" in told
    assert "expected at most 65504" in told


@pytest.mark.parametrize(
    ("section", "advice"),
    [
        ("extract", "expected at most 65504, which float16 holds: set extract.dtype to auto, float32 or bfloat16"),
        ("compute", "the embeddings give hidden states that are not finite: use compute.dtype float32 or bfloat16"),
    ],
)
def test_hidden_states_beyond_what_float16_holds_are_told(section, advice, tmp_path, capsys):
    with Project(tmp_path, "float32", lambda model: model.model.embed_tokens.weight.mul_(1e6)).entered() as project:
        assert project.code("extract", **{section: {"dtype": "float16"}}) == 2
    (told,) = [line for line in capsys.readouterr().err.splitlines() if ": error: " in line]
    assert advice in told


def test_what_the_pruned_model_lacks_is_not_rounded(tmp_path):
    """Hidden states whose difference is small beside them, and beyond float16's range."""
    generator = torch.Generator().manual_seed(0)
    with Project(tmp_path, "float16").entered():
        model = StreamedModel(MODEL, CPU)
        down = next(linear for linear in model.linears(0) if linear.role == "mlp.down")
        ours, theirs = (60000 * sign * torch.rand(5, down.shape[1], generator=generator).half() for sign in (1, -1))
        before, ahead = torch.randn(2, 5, down.shape[0], generator=generator).half()
        with model.loaded(0):
            lacks = OutputErrorSum((down,), model, True, torch.float64)
            found = lacks.partner(Stop(0, ours, before), Stop(0, theirs, ahead))
            expected = (theirs.double() - ours.double()) @ model.weights.current(down).double().T
    torch.testing.assert_close(found, expected + ahead.double() - before.double())
