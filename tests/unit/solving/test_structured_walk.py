"""Structured methods in the solve stage: budgets, masks of whole units, and what makes up for them, on tiny models."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.artifacts.manifest import read_json
from stages.artifacts.places import block_file
from stages.artifacts.solution import read_biases, read_masks, read_units
from stages.linalg.compensation import compensated
from stages.linalg.correction import OutputErrorMoments, corrected_target
from stages.methods import registry
from stages.methods.units.contract import UnitProblem
from stages.methods.units.ranking import keep_best
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import KINDS, parameters_of, units_of
from stages.models.structure import find_blocks, linears_of
from stages.solving import walk as solving
from stages.walk.pruned import read_weights
from tests.helpers.killing import Killed, kill_in
from tests.helpers.plain_walk import (
    HELD_OUT,
    INPUT_GROUPS,
    WRITES_TO_RESIDUAL,
    calibration_windows,
    inputs_of,
    residual_stream,
    table,
)
from tests.helpers.tiny import DENSE_STAGES

EVERY_METHOD = pytest.mark.parametrize("method", registry.names("units"))
WALKS = (
    {"inputs": "dense"},
    {"walk": "block", "target": "dense"},
    {"walk": "block", "target": "corrected"},
    {"target": "dense"},
    {},
    {"units": {"corrected": "all"}},
)
PLAIN = {"method": "newton", "sparsity": 0.3, "inputs": "dense"}


class Found:
    """The solution of a workspace, block by block, beside the model it is of."""

    def __init__(self, w) -> None:
        self.folder, self.model = w.folder, StreamedModel(w.folder / "data/model", torch.device("cpu"))
        self.paths = [w.folder / "data/solution" / block_file(index) for index in range(self.model.blocks)]
        self.units = [units_of(self.model, index) for index in range(self.model.blocks)]
        self.kept = [read_units(path) for path in self.paths]

    def keep(self, units):
        return self.kept[units.block][units.kind]

    def counts(self):
        return [[int(kept[kind].sum()) for kind in KINDS] for kept in self.kept]

    def removed(self):
        return sum(int((~self.keep(one)).sum()) * one.parameters for kinds in self.units for one in kinds)

    def total(self):
        return sum(parameters_of(kinds) for kinds in self.units)

    def masks(self, index):
        """Mask (d_out, d_in) of each linear of a block."""
        return read_masks(self.paths[index], {one.name: one.shape for one in self.model.linears(index)})

    def biases(self, index):
        """Changed biases of a block, by parameter."""
        return read_biases(self.paths[index], [one.name for one in self.model.linears(index)])

    def weights(self, index):
        """Weights (d_out, d_in) and biases of the block's linears, by parameter."""
        linears = self.model.linears(index)
        found = read_weights(self.paths[index], linears, self.model)
        return found | {linear.tensor: linear.weight(found[linear.tensor]) for linear in linears}

    def weight(self, linear):
        return self.weights(linear.block)[linear.tensor]

    def whole(self):
        """The dense model in memory."""
        return AutoModelForCausalLM.from_pretrained(self.folder / "data/model").eval()

    def put(self, model, linear):
        """Give a model in memory this linear's solution."""
        with torch.no_grad():
            linear.weight(model.get_parameter(linear.tensor)).copy_(self.weight(linear))


def flat(model, linear, tokens):
    """What enters a linear, (tokens, d_in) in float64."""
    x = inputs_of(model, [linear], tokens)[linear.name]
    return x.reshape(-1, x.shape[-1]).double()


def gram_of(x):
    return x.T @ x / len(x)


@EVERY_METHOD
def test_the_budget_is_met_by_whole_units(method, workspace):
    w = workspace()
    w.run(*DENSE_STAGES)
    for walk in WALKS[::2] if method != "obs_units" else WALKS:
        w.change(solve={"method": method, "sparsity": 0.3, **walk})
        w.run("solve")
        found = Found(w)
        over = found.removed() - math.ceil(0.3 * found.total())
        per_block = registry.find(method).settings.allocation == "uniform"
        assert 0 <= over < (3 if per_block else 1) * found.units[0][1].parameters
        assert all(min(counts) >= 1 for counts in found.counts())
        assert not per_block or len({tuple(counts) for counts in found.counts()}) == 1
        rows, corrects = table(w), walk.get("units") is not None
        for index, kinds in enumerate(found.units):
            masks, weights = (
                found.masks(index),
                found.weights(index),
            )
            for units in kinds:
                keep = found.keep(units)
                assert torch.equal(masks[units.sink.name], units.kept_columns(keep).expand(units.sink.shape))
                for linear, stays in units.kept_rows(keep).items():
                    assert torch.equal(masks[linear.name], stays[:, None].expand(linear.shape))
                    dense = found.model.weights.stored(linear)
                    assert corrects or torch.equal(weights[linear.tensor], torch.where(stays[:, None], dense, 0.0))
            for linear in found.model.linears(index):
                kept = int(masks[linear.name].sum())
                assert (rows[linear.name]["kept"], rows[linear.name]["method"]) == (kept, method)
                assert bool((weights[linear.tensor][~masks[linear.name]] == 0).all())


@pytest.mark.parametrize("architecture", ["llama", "llama_bias", "phi", "gpt2", "gpt_neox", "qwen3"])
def test_from_dense_inputs_sinks_are_compensated_for_what_enters_them(architecture, workspace):
    w = workspace(architecture, solve=PLAIN)
    w.run(*DENSE_STAGES, "solve")
    found, tokens = Found(w), calibration_windows(w)
    dense, rows = found.whole(), table(w)
    assert found.removed() > 0
    for kinds in found.units:
        for units in kinds:
            gram, weight = gram_of(flat(dense, units.sink, tokens)), found.model.weights.stored(units.sink).double()
            expected = compensated(weight, gram, units.kept_columns(found.keep(units)), 0.01)
            torch.testing.assert_close(found.weight(units.sink).double(), expected.weight, rtol=1e-3, atol=1e-5)
            error = expected.loss / float(((weight @ gram) * weight).sum())
            assert rows[units.sink.name]["relative_error"] == pytest.approx(error, rel=1e-3, abs=1e-9)
            assert rows[units.sink.name]["damping"] == (0.01 if error else None)


@pytest.mark.parametrize("architecture", ["llama", "phi"])
@pytest.mark.parametrize("walk", WALKS[1:], ids=lambda walk: "-".join(map(str, walk.values())) or "auto")
def test_from_pruned_inputs_the_walk_is_the_plain_one(architecture, walk, workspace):
    """The whole model in memory, plain hooks, groups (or blocks) of linears replaced one after another."""
    units = {"compensation": "weights", **walk.get("units", {})}
    solving = {"method": "wanda_units", "sparsity": 0.3, **walk, "units": units}
    w = workspace(architecture, solve=solving, statistics={"dtype": "float64"})
    w.run(*DENSE_STAGES, "solve")
    found, tokens = Found(w), calibration_windows(w)
    dense, walked = found.whole(), found.whole()
    before = found.whole()  # what a visit without order sees of its block
    prefix, blocks = find_blocks(walked)
    ordered, corrects = walk.get("walk") != "block", walk.get("target") != "dense"
    for index, block in enumerate(blocks):
        linears = {linear.name.split(".")[-1]: linear for linear in linears_of(block, prefix, index)}
        sinks, added = {units.sink.name: units for units in found.units[index]}, []
        seen = walked if ordered else before
        for group in INPUT_GROUPS[architecture]:
            names, some = [linears[name].name for name in group], [linears[name] for name in group]
            x, x0 = (inputs_of(model, [some[0]], tokens)[names[0]].double() for model in (seen, dense))
            weight = torch.cat([found.model.weights.stored(linear) for linear in some]).double()
            lack, rows = (x0 - x) @ weight.T, tuple(linear.shape[0] for linear in some)
            if group[0] in WRITES_TO_RESIDUAL:
                ahead, behind = (residual_stream(model, prefix, index, added, tokens) for model in (dense, seen))
                lack = lack + ahead - behind
                added.append(names[0])
            target = weight
            if corrects and (names[0] in sinks or "units" in walk):
                parts = []
                for piece in (slice(0, -HELD_OUT), slice(-HELD_OUT, None)):
                    xs, lacks = (each[piece].reshape(-1, each.shape[-1]) for each in (x, lack))
                    parts.append(OutputErrorMoments(xs.T @ xs / len(xs), xs.T @ lacks / len(xs)))
                target, _ = corrected_target(weight, *parts, rows, 1.0, (0.1, 1.0))
            for linear, wanted in zip(some, target.split(rows), strict=True):
                ours = found.weight(linear).double()
                if linear.name in sinks:
                    keep = sinks[linear.name].kept_columns(found.keep(sinks[linear.name]))
                    expected = compensated(wanted, gram_of(x.reshape(-1, x.shape[-1])), keep, 0.01).weight
                    found.put(walked, linear)
                else:  # sinks make up for units that go: they still see them
                    expected = torch.where(ours.any(1, keepdim=True), wanted, 0.0)
                    linear.weight(walked.get_parameter(linear.tensor)).data.copy_(wanted)
                torch.testing.assert_close(ours, expected, rtol=1e-3, atol=2e-3)
        for linear in linears.values():
            found.put(walked, linear)
            found.put(before, linear)


@pytest.mark.parametrize("architecture", ["llama", "opt"])
@pytest.mark.parametrize("walk", [WALKS[1], WALKS[4]], ids=["block", "ordered"])
@pytest.mark.parametrize("kind", ["bias", "affine"])
def test_biases_are_of_what_the_pruned_model_gives_and_what_follows_sees_them(architecture, walk, kind, workspace):
    units = {"compensation": kind}
    solving = {"method": "flap", "sparsity": 0.3, "target": "dense", **walk, "units": units}
    w = workspace(architecture, solve=solving, statistics={"dtype": "float64"})
    w.run(*DENSE_STAGES, "solve")
    found, tokens = Found(w), calibration_windows(w)
    walked, made = found.whole(), 0
    for index, kinds in enumerate(found.units):
        biases, before = (
            found.biases(index),
            copy.deepcopy(walked),
        )
        for units in kinds:
            seen = before if walk.get("walk") == "block" else walked
            x, name = flat(seen, units.sink, tokens), f"{units.sink.name}.bias"
            away = found.model.weights.stored(units.sink).double() - found.weight(units.sink).double()
            found.put(walked, units.sink)
            if name in biases:
                expected = found.model.weights.stored_bias(units.sink).double() + away @ x.mean(0)
                torch.testing.assert_close(biases[name].double(), expected, rtol=1e-4, atol=1e-5)
                walked.get_submodule(units.sink.name).bias = torch.nn.Parameter(biases[name])
                made += 1
        for linear in found.model.linears(index):
            found.put(walked, linear)
    assert made > 2


@pytest.mark.parametrize(
    ("method", "walk", "after"),
    [
        ("newton", WALKS[0], 0), ("newton", WALKS[2], 2), ("newton", WALKS[4], 1),
        ("obs_units", WALKS[0], 2), ("obs_units", WALKS[5], 2),
    ],
    ids=["dense", "block", "ordered", "gradients-dense", "gradients-ordered"],
)  # fmt: skip
def test_a_killed_run_goes_on_from_the_blocks_that_are_finished(method, walk, after, workspace, monkeypatch):
    w = workspace(solve={"method": method, "sparsity": 0.4, **walk})
    w.run(*DENSE_STAGES)
    with monkeypatch.context() as patch:
        kill_in(patch, solving, "write_block", after)
        with pytest.raises(Killed):
            w.run("solve")
    assert not (w.folder / "data/solution").exists()
    w.run("solve")
    cost, scored = read_json(w.folder / "metrics/cost/solve.json"), 6 if method == "obs_units" else 3
    assert (cost["blocks_restored"], cost["blocks_made"]) == (scored + after, 3 - after)
    resumed = w.bytes_of("solution")
    for path in (w.folder / ".cache/blocks").glob("*/*"):
        path.unlink()
    w.run("solve")
    assert read_json(w.folder / "metrics/cost/solve.json")["blocks_made"] == scored + 3
    assert w.bytes_of("solution") == resumed


@pytest.mark.parametrize(("method", "scored"), [("newton", 3), ("obs_units", 6), ("llm_pruner", 6)])
def test_another_sparsity_needs_no_new_scores(method, scored, workspace):
    w = workspace(solve={"method": method, "sparsity": 0.2, "inputs": "dense"})
    w.run(*DENSE_STAGES, "solve")
    before = Found(w)
    w.change(solve={"method": method, "sparsity": 0.5, "inputs": "dense"})
    w.run("solve")
    cost, after = read_json(w.folder / "metrics/cost/solve.json"), Found(w)
    assert (cost["blocks_restored"], cost["blocks_made"]) == (scored, 3)
    assert after.removed() > before.removed()
    w.change(solve={"method": method, "sparsity": 0.2, "inputs": "dense"})
    w.run("solve")
    cost = read_json(w.folder / "metrics/cost/solve.json")
    assert (cost["blocks_restored"], cost["blocks_made"]) == (scored + 3, 0)


def test_other_settings_of_the_method_need_new_scores(workspace):
    w = workspace(solve=PLAIN)
    w.run(*DENSE_STAGES, "solve")
    w.change(solve=PLAIN, methods={"newton": {"damping": 0.5}})
    w.run("solve")
    assert read_json(w.folder / "metrics/cost/solve.json")["blocks_made"] >= 4


def test_at_sparsity_zero_the_dense_model_comes_back(workspace):
    w = workspace(solve={**PLAIN, "sparsity": 0})
    w.run(*DENSE_STAGES)
    for walk in WALKS:
        w.change(solve={"method": "newton", "sparsity": 0.0, **walk})
        w.run("solve")
        found = Found(w)
        assert found.removed() == 0
        for index in range(3):
            for linear in found.model.linears(index):
                assert torch.equal(found.weight(linear), found.model.weights.stored(linear))
            assert not found.biases(index)


@pytest.mark.parametrize("architecture", ["llama", "opt"])
def test_what_makes_up_for_units_lowers_the_measured_error_as_it_should(architecture, workspace):
    """Outputs of o and down on calibration data: a bias restores their mean, affine is least squares with one."""
    w = workspace(architecture)
    w.run(*DENSE_STAGES)
    errors, shares = {}, {}
    for kind in ("none", "bias", "weights", "affine"):
        inverts = {"damping": 0.0} if kind in ("weights", "affine") else {}
        units = {"compensation": kind, "allocation": "uniform", **inverts}
        w.change(solve={"method": "flap", "sparsity": 0.3, "inputs": "dense", "units": units})
        w.run("solve")
        found, rows, tokens = Found(w), table(w), calibration_windows(w)
        dense = found.whole()
        for index, kinds in enumerate(found.units):
            biases = found.biases(index)
            assert (len(biases) > 0) == (kind in ("bias", "affine"))
            for one in kinds:
                x, weight = flat(dense, one.sink, tokens), found.model.weights.stored(one.sink).double()
                ours = x @ found.weight(one.sink).double().T
                if biases:
                    ours = ours + (biases[f"{one.sink.name}.bias"] - found.model.weights.stored_bias(one.sink)).double()
                away, name = ours - x @ weight.T, one.sink.name
                errors[kind, name] = float(away.square().sum() / (x @ weight.T).square().sum())
                assert rows[name]["relative_error"] == pytest.approx(errors[kind, name], rel=1e-2, abs=1e-7)
                if kind in ("bias", "affine"):
                    assert float(away.mean(0).abs().max()) < 1e-5
                if kind == "affine":
                    kept = torch.cat((x[:, one.kept_columns(found.keep(one))], torch.ones(len(x), 1).double()), 1)
                    best = kept.numpy() @ np.linalg.lstsq(kept.numpy(), (x @ weight.T).numpy(), rcond=None)[0]
                    np.testing.assert_allclose(ours.numpy(), best, atol=2e-4)
                shares[name] = float((~found.keep(one)).sum())
    names = [name for name, gone in shares.items() if gone]
    assert names
    for name in names:
        none, bias, weights, affine = (errors[kind, name] for kind in ("none", "bias", "weights", "affine"))
        assert affine <= min(weights, bias) * (1 + 1e-4)
        assert max(weights, bias) < none


def test_the_methods_own_compensation_is_taken_unless_one_is_asked_for(workspace):
    w = workspace()
    w.run(*DENSE_STAGES)
    solutions = {}
    for kind in ("auto", "bias", "none"):
        w.change(solve={"method": "flap", "sparsity": 0.3, "units": {"compensation": kind}})
        w.run("solve")
        solutions[kind] = w.bytes_of("solution")
    names = [block_file(index) for index in range(3)]
    assert [solutions["auto"][name] for name in names] == [solutions["bias"][name] for name in names]
    assert [solutions["auto"][name] for name in names] != [solutions["none"][name] for name in names]


@pytest.mark.parametrize("method", ["newton", "flap"])
def test_choice_pruned_takes_as_many_units_by_what_the_pruned_model_gives_them(method, workspace):
    walk = {"walk": "block", "target": "dense"}
    w = workspace(statistics={"dtype": "float64"})
    w.run(*DENSE_STAGES)
    found = {}
    for choice in ("dense", "pruned"):
        units = {"compensation": "weights", "choice": choice}
        w.change(solve={"method": method, "sparsity": 0.4, **walk, "units": units}, statistics={"dtype": "float64"})
        w.run("solve")
        found[choice] = Found(w)
    assert found["dense"].counts() == found["pruned"].counts()
    ours, tokens, scorer = found["pruned"], calibration_windows(w), registry.load(method)
    walked, others = ours.whole(), 0
    for index, kinds in enumerate(ours.units):
        for units in kinds:
            x, keep = flat(walked, units.sink, tokens), ours.keep(units)
            dense = ours.model.weights.stored(units.sink).double()
            problem = UnitProblem(dense, gram_of(x), x.mean(0), len(x), units.columns, units.parameters)
            expected = keep_best(scorer(problem), int(keep.sum()))
            assert int((expected != keep).sum()) <= 2  # near-ties
            others += int((keep != found["dense"].keep(units)).sum())
        for linear in ours.model.linears(index):
            ours.put(walked, linear)
    assert others > 0


def test_all_linears_are_corrected_where_that_is_asked_for(workspace):
    w = workspace()
    w.run(*DENSE_STAGES)
    corrected = {}
    for which in ("sinks", "all"):
        w.change(solve={"method": "newton", "sparsity": 0.4, "units": {"corrected": which}})
        w.run("solve")
        corrected[which] = {row["role"] for row in table(w).values() if row["correction"] is not None}
    assert corrected["sinks"] <= {"attention.o", "mlp.down"}
    assert corrected["sinks"]
    assert corrected["all"] - {"attention.o", "mlp.down"}


@pytest.mark.parametrize("method", ["newton", "wanda_units"])
def test_rules_protect_heads_or_channels_of_some_blocks_and_the_rest_makes_up_for_it(method, workspace):
    rules = [
        {"roles": ["attention"], "blocks": [0, 1], "sparsity": 0.0},
        {"roles": ["mlp"], "blocks": [2], "sparsity": 0.25},
        {"roles": ["mlp"], "blocks": 1},
        {"blocks": [0], "sparsity": 0.0},
    ]
    w = workspace(solve={"method": method, "sparsity": 0.15, "rules": rules})
    w.run(*DENSE_STAGES, "solve")
    found = Found(w)
    counts = found.counts()
    assert (counts[0], counts[1][0], counts[2][1]) == ([2, 48], 2, 36)
    assert 0 <= found.removed() - math.ceil(0.15 * found.total()) < found.units[0][1].parameters


def test_widths_stay_multiples_where_that_is_asked_for(workspace):
    w = workspace()
    w.run(*DENSE_STAGES)
    rules = [{"roles": ["mlp"], "blocks": [0], "sparsity": 0.3}, {"blocks": 1, "sparsity": 0}]
    for method in ("newton", "wanda_units"):
        for given in ([], rules):
            w.change(solve={"method": method, "sparsity": 0.2, "units": {"multiple": 16}, "rules": given})
            w.run("solve")
            found = Found(w)
            assert all(counts[1] % 16 == 0 for counts in found.counts())
            assert found.removed() >= 0.2 * found.total()
            assert not given or (found.counts()[0][1], found.counts()[1]) == (32, [2, 48])


def test_the_literal_rule_goes_by_the_count_of_units(workspace):
    w = workspace(solve={**PLAIN, "units": {"ranking": "literal"}})
    w.run(*DENSE_STAGES, "solve")
    found = Found(w)
    gone = sum(int((~found.keep(one)).sum()) for kinds in found.units for one in kinds)
    assert gone == 45  # of 3 times 2 groups and 48 channels


def test_the_one_group_of_a_model_with_one_key_stays(workspace):
    w = workspace("gemma")
    w.run(*DENSE_STAGES)
    for method in ("newton", "wanda_units"):
        w.change(solve={"method": method, "sparsity": 0.4})
        w.run("solve")
        assert [counts[0] for counts in Found(w).counts()] == [1, 1, 1]
        assert Found(w).removed() >= 0.4 * Found(w).total()
