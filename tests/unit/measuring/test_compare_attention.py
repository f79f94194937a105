"""The compare_attention stage on tiny models: its errors are those of the real models' attention matrices."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages import compare_attention
from stages.artifacts.atomic import write_json
from stages.artifacts.attention import ATTENTION_ERRORS
from stages.artifacts.manifest import read_json, read_manifest, sha256_of
from stages.artifacts.tokens import read_tokens, sample_windows
from stages.linalg.spectral import smallest_eigenvalue
from stages.models.structure import find_blocks
from tests.helpers.tiny import CONFIGS, VOCABULARY, tiny_model

MODEL, PRUNED, TEXTS = Path("data/model"), Path("data/pruned"), Path("data/texts")
MANIFEST = PRUNED / "pruning_manifest.json"
SMALL = {"sequences": 3, "length": 12}
CALIBRATION = {"sequences": 6, "length": 16, "seed": 0}


@pytest.fixture
def pruned_workspace(workspace):
    """A workspace with a model in data/pruned as assemble leaves it: the dense one, its weights disturbed."""

    def make(architecture="llama", noise=0.05, calibration=CALIBRATION, attention=SMALL, **sections):
        made = workspace(architecture, **sections)
        save_pruned(architecture, noise, calibration)
        made.change(evaluate={"attention": attention}, **sections)
        return made

    return make


def save_pruned(architecture, noise, calibration):
    model = disturbed(architecture, noise)
    shutil.rmtree(PRUNED, ignore_errors=True)
    model.save_pretrained(PRUNED)
    facts = {
        "files": {path.name: sha256_of(path) for path in PRUNED.iterdir()},
        "source_files": read_manifest(MODEL)["files"],
        "calibration": {**calibration, "text": read_manifest(TEXTS)["calibration"]},
    }
    write_json(MANIFEST, facts)


def disturbed(architecture, noise):
    model = tiny_model(architecture)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    return model


def figures():
    return json.loads(Path("metrics/attention.json").read_text())


def rows():
    return ATTENTION_ERRORS.read(Path("data/attention/errors.parquet"))


@torch.no_grad()
def eager(folder, tokens, entering=None):
    """Attention matrices of every block of the real model, and its states; `entering` replaces what enters a block."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()

    def replace(index, block, args, kwargs):
        return ((entering[index], *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": entering[index]})

    if entering is not None:
        for index, block in enumerate(find_blocks(model)[1]):
            block.register_forward_pre_hook(partial(replace, index), with_kwargs=True)
    answer = model(tokens, output_hidden_states=True, output_attentions=True, use_cache=False)
    return answer.attentions, answer.hidden_states


def expected(tokens):
    """By inputs, block and head the relative error, from whole matrices."""
    meant, states = eager(MODEL, tokens)
    for inputs, entering in (("dense", states), ("own", None)):
        for block, (ours, f) in enumerate(zip(eager(PRUNED, tokens, entering)[0], meant, strict=True)):
            errors = (ours - f).double().square().sum((0, 2, 3)) / f.double().square().sum((0, 2, 3))
            yield from (((inputs, block, head), error) for head, error in enumerate(errors.tolist()))


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma2", "mistral", "phi", "opt", "gpt2", "gpt_neox"])
def test_errors_are_those_of_the_real_models_attention_matrices(architecture, pruned_workspace):
    pruned_workspace(architecture).run("compare_attention")
    found = {(row["text"], row["inputs"], row["block"], row["head"]): row["relative_error"] for row in rows()}
    assert len(found) == 2 * 2 * 3 * 4
    for text, tokens in texts(3, 12).items():
        for place, error in expected(tokens):
            assert found[text, *place] == pytest.approx(error, rel=1e-3)
            assert error > 0


def texts(sequences, length):
    """The beginnings of calibration's windows, and of the evaluation text."""
    manifest = read_manifest(TEXTS)
    seen = sample_windows(read_tokens(TEXTS, "calibration", manifest), 6, 16, 0)
    unseen = read_tokens(TEXTS, "evaluation", manifest)[: sequences * length].view(sequences, length)
    return {"calibration": seen[:sequences, :length], "held_out": unseen}


def test_the_same_model_has_no_error_at_all(pruned_workspace):
    pruned_workspace("gpt2", noise=0.0).run("compare_attention")
    assert {row["relative_error"] for row in rows()} == {0.0}
    assert figures()["held_out"]["own"]["worst"] == 0.0


def test_delta_and_beta_are_those_of_the_whole_matrices(pruned_workspace):
    pruned_workspace("opt").run("compare_attention")
    told = figures()
    visible = torch.ones(12, 12, dtype=torch.bool).tril()
    for text, tokens in texts(3, 12).items():
        least = min(float(f[:, :, visible].min()) for f in eager(PRUNED, tokens)[0])
        assert told[text]["own"]["least_probability"] == pytest.approx(least, rel=1e-4)
        norms = [block.self_attn_layer_norm for block in find_blocks(AutoModelForCausalLM.from_pretrained(MODEL))[1]]
        states = eager(MODEL, tokens)[1]
        with torch.no_grad():
            entering = [norm(entering).double() for norm, entering in zip(norms, states, strict=False)]
        betas = [float(torch.linalg.eigvalsh(x @ x.mT).min()) for x in entering]
        found = [row["smallest_eigenvalue"] for row in rows() if (row["text"], row["inputs"]) == (text, "own")]
        assert found[::4] == pytest.approx(betas, rel=1e-4)
        assert told[text]["smallest_eigenvalue"] == {"lowest": min(found), "highest": max(found)}


def test_beta_is_0_where_rows_are_equal_or_more_than_the_width():
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    assert smallest_eigenvalue(x) > 0
    assert smallest_eigenvalue(torch.cat([x, x[:1]])) == 0.0
    assert smallest_eigenvalue(torch.randn(9, 8)) == 0.0


def test_figures_are_the_mean_the_last_and_the_worst_block(pruned_workspace):
    pruned_workspace().run("compare_attention")
    part = [row for row in rows() if (row["text"], row["inputs"]) == ("held_out", "dense")]
    energy = [sum(row["energy"] for row in part if row["block"] == block) for block in range(3)]
    error = [sum(row["relative_error"] * row["energy"] for row in part if row["block"] == b) for b in range(3)]
    blocks = [a / b for a, b in zip(error, energy, strict=True)]
    told = figures()["held_out"]["dense"]
    assert told["mean"] == pytest.approx(sum(blocks) / 3)
    assert told["last"] == pytest.approx(blocks[-1])
    assert told["worst"] == pytest.approx(blocks[told["worst_block"]]) == pytest.approx(max(blocks))


@pytest.mark.parametrize("chunk", [1, 3])
def test_how_many_sequences_go_together_changes_nothing(chunk, pruned_workspace):
    w = pruned_workspace()
    w.run("compare_attention")
    before = [row["relative_error"] for row in rows()]
    w.change(evaluate={"attention": SMALL}, compute={"chunk": chunk})
    w.run("compare_attention")
    assert [row["relative_error"] for row in rows()] == pytest.approx(before, rel=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_gives_about_the_same(dtype, pruned_workspace):
    w = pruned_workspace()
    w.run("compare_attention")
    before = figures()
    w.change(evaluate={"attention": SMALL}, compute={"dtype": dtype})
    w.run("compare_attention")
    for text in ("calibration", "held_out"):
        for figure in ("mean", "least_probability"):
            assert figures()[text]["own"][figure] == pytest.approx(before[text]["own"][figure], rel=0.1)


def test_running_again_gives_the_same_bytes(pruned_workspace):
    w = pruned_workspace()
    w.run("compare_attention")
    first = w.bytes_of("attention"), figures()
    w.run("compare_attention")
    assert (w.bytes_of("attention"), figures()) == first
    assert set(first[0]) == {"errors.parquet", "manifest.json"}
    assert set(rows()[0]) == set(ATTENTION_ERRORS.schema.names)


def test_no_more_than_calibration_had_is_compared(pruned_workspace):
    pruned_workspace(attention={"sequences": 100, "length": 100}).run("compare_attention")
    assert (figures()["sequences"], figures()["length"]) == (6, 16)


def test_switched_off_it_says_so_and_reads_no_model(pruned_workspace):
    w = pruned_workspace(attention={"sequences": 0})
    (PRUNED / "model.safetensors").unlink()
    w.run("compare_attention")
    assert figures() == {"state": "off", "reason": "evaluate.attention.sequences is 0"}
    assert rows() == []
    assert read_manifest(Path("data/attention"))["state"] == "off"


def test_a_model_whose_attention_cannot_be_reached_is_told_and_fails_nothing(pruned_workspace, monkeypatch):
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    monkeypatch.setitem(CONFIGS, "bloom", ("BloomConfig", sizes))
    pruned_workspace("bloom").run("compare_attention")
    assert figures()["state"] == "unreachable"
    assert "BloomForCausalLM does not use transformers' attention functions" in figures()["reason"]
    assert rows() == []


@pytest.mark.parametrize(
    ("attention", "told"),
    [
        (
            {"length": 4096},
            "evaluate.attention.length: expected at most 2048, the positions that the model was made for",
        ),
        ({"sequences": 20}, "evaluate.attention: 20 sequences of 16 tokens are more than the 300 tokens of the eval"),
        ({"sequences": -1}, "evaluate.attention.sequences: input should be greater than or equal to 0, got -1"),
    ],
)
def test_settings_that_model_or_text_cannot_serve_are_refused(attention, told, pruned_workspace):
    w = pruned_workspace(calibration=CALIBRATION | {"sequences": 20}, attention=attention)
    code, error = w.fail("compare_attention")
    assert code == 2
    assert told in error
    assert not Path("metrics/attention.json").exists()


def test_another_model_another_text_or_a_corrupt_file_are_refused(pruned_workspace):
    w = pruned_workspace()
    manifest = read_json(MANIFEST)
    for change, told in (
        ({"source_files": {}}, "data/pruned was made from another model than data/model holds now"),
        ({"calibration": {**manifest["calibration"], "text": {}}}, "data/pruned was calibrated on another text"),
        ({"files": {"model.safetensors": "0" * 64}}, "data/pruned/model.safetensors is corrupt"),
    ):
        write_json(MANIFEST, manifest | change)
        code, error = w.fail("compare_attention")
        assert code == 2
        assert told in error


@pytest.mark.parametrize(("part", "code"), [("attention", 2), ("perplexity", 0)])
def test_only_its_own_part_of_evaluate_must_stay_while_it_runs(part, code, pruned_workspace, monkeypatch):
    w = pruned_workspace()

    def change_first(*arguments):
        changed = {"attention": {**SMALL, "length": 10}} if part == "attention" else {"perplexity": {"windows": 1}}
        w.change(evaluate={"attention": SMALL, **changed})
        return compared(*arguments)

    compared = compare_attention.error_rows
    monkeypatch.setattr(compare_attention, "error_rows", change_first)
    assert w.fail("compare_attention")[0] == code
    assert Path("data/attention").exists() == (code == 0)
