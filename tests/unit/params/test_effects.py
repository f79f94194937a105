"""A setting is honoured or refused: sparsities that patterns contradict, and values that could have no effect."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from stages import params
from stages.artifacts.linears import LINEARS
from stages.errors import ParameterError
from stages.linalg.masks import removed_count
from stages.methods import registry
from stages.params.yamlfile import read_yaml, yaml_text
from tests.helpers.committed import ROOT
from tests.helpers.tiny import write_params

PAIR = {"roles": ["attention.q", "attention.k"], "method": "attention_gd", "settings": {}}
NARROW = {"roles": ["attention", "mlp.gate", "mlp.up"], "sparsity": 0}


def read(folder, **sections):
    write_params(folder, **sections)
    return params.read(folder / "params.yaml")


@pytest.mark.parametrize(
    ("solve", "told"),
    [
        ({"pattern": "2:4", "sparsity": 0.7}, "solve.sparsity: pattern 2:4 removes 0.5, got 0.7: write `spars"),
        ({"pattern": "2:4", "sparsity": 0}, "solve.sparsity: pattern 2:4 removes 0.5, got 0"),
        ({"pattern": "1:4", "sparsity": 0.5}, "write `sparsity: null` or `sparsity: 0.75`, or write `pattern: unstr"),
        ({"pattern": "4:4", "sparsity": 0.5}, "solve.sparsity: pattern 4:4 removes 0, got 0.5"),
        ({"sparsity": None}, "solve.sparsity: pattern unstructured needs one, got nothing: write, say, `spars"),
        (
            {"pattern": "2:4", "sparsity": None, "rules": [{"roles": "mlp", "sparsity": 0.3}]},
            "solve.rules[0].sparsity: pattern 2:4 removes 0.5, got 0.3",
        ),
        ({"rules": [{"pattern": "1:4", "sparsity": 0.5}]}, "solve.rules[0].sparsity: pattern 1:4 removes 0.75"),
        ({"units": {"multiple": 64}}, "solve.units.multiple: magnitude removes single weights: expected 1, got 64"),
        ({"refit_steps": 3}, "solve.refit_steps: refit is none: expected 10, got 3"),
        ({"refit_ridge": 3}, "solve.refit_ridge: refit is none: expected 0.1, got 3"),
        ({"refit": "exact", "refit_steps": 3}, "solve.refit_steps: refit is exact, which takes no steps"),
        ({"rules": [{**PAIR, "refit": "cg"}]}, "solve.rules[0].refit: attention_gd is not followed by a refit, got cg"),
        (
            {"method": "attention_gd", "refit": "cg", "rules": [{"roles": "mlp", "sparsity": 0}]},
            "solve.refit: no refit follows attention_gd: expected none, got cg",
        ),
        ({"allocation_spread": 0.1}, "solve.allocation_spread: allocation is uniform: expected 0.08, got 0.1"),
        ({"allocation": "error", "allocation_outlier": 7}, "solve.allocation_outlier: allocation is error: expect"),
        ({"allocation": "owl", "pattern": "2:4"}, "solve.allocation: pattern 2:4 settles what every linear loses"),
        ({"scope": "row", "pattern": "2:4"}, "solve.scope: weights compete within the groups of 2:4: expected auto"),
        ({"rules": [{"pattern": "2:4", "scope": "row"}]}, "solve.rules[0].scope: weights compete in the groups of 2:4"),
        ({"rules": [{"sparsity": 0, "method": "wanda", "settings": {}}]}, "solve.rules[0].method: a rule with spa"),
        ({"rules": [{"sparsity": 0, "refit": "cg"}]}, "solve.rules[0].refit: a rule with sparsity 0 prunes nothing"),
        ({"rules": [{"blocks": [0]}]}, "solve.rules[0]: it gives roles and blocks alone: add, say, `sparsity: 0`"),
        ({"inputs": "dense", "correction": 0.5}, "solve.correction: solve.inputs is dense, so nothing is corrected"),
        ({"target": "dense", "correction_ridges": [1.0]}, "solve.correction_ridges: solve.target is dense"),
        (
            {"method": "newton", "inputs": "dense", "units": {"choice": "pruned"}},
            "solve.units.choice: solve.inputs is dense: expected dense, got pruned",
        ),
        (
            {"method": "newton", "inputs": "dense", "units": {"corrected": "all"}},
            "solve.units.corrected: solve.inputs is dense: expected sinks, got all",
        ),
        (
            {"method": "newton", "units": {"compensation": "none", "damping": 0.1}},
            "solve.units.damping: compensation: none inverts nothing: expected 0.01, got 0.1",
        ),
        (
            {"method": "flap", "units": {"damping": 0.1}},
            "solve.units.damping: compensation: bias inverts nothing: expected 0.01, got 0.1",
        ),
        ({"method": "d_gating", "pattern": "2:4"}, "solve.pattern: d_gating removes whole heads and channels"),
        ({"method": "newton", "allocation_spread": 0.1}, "solve.allocation_spread: newton removes whole heads and"),
        ({"method": "slicegpt", "correction": 0.5}, "solve.correction: slicegpt slices all blocks to one width"),
    ],
)  # fmt: skip
def test_what_could_have_no_effect_is_refused_in_one_line(solve, told, tmp_path):
    with pytest.raises(ParameterError) as error:
        read(tmp_path, solve=solve)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        (
            {"workers": {"runner": "dask", "address": "tcp://a:1", "count": 2}},
            "workers.count: the cluster at tcp://a:1 has its own workers: expected 1, got 2",
        ),
        *(
            ({"evaluate": {"images": images}}, f"evaluate.images.{told}")
            for images, told in [
                ({"temperature": 2.0}, "temperature: evaluate.images.count is 0, so no image is drawn: expected 1.0"),
                ({"classes": [0, "2-3"]}, "classes: evaluate.images.count is 0"),
                ({"count": 16, "reference": "faces"}, "reference: evaluate.images.features is null"),
                ({"count": 16, "size": 256}, "size: evaluate.images.features is null"),
                ({"count": 4}, "shown: expected at most count (4), got 16"),
                ({"count": 16, "guidance_scale": 1, "guided_codes": 4}, "guided_codes: guidance_scale 1 guides no"),
                ({"count": 16, "guidance_scale": 0.5}, "guidance_scale: input should be greater than or equal to 1"),
                ({"count": 16, "top_p": 0}, "top_p: input should be greater than 0"),
            ]
        ),
    ],
)
def test_what_other_sections_could_not_honour_is_refused(sections, told, tmp_path):
    with pytest.raises(ParameterError) as error:
        read(tmp_path, **sections)
    assert told in str(error.value)


@pytest.mark.parametrize("method", registry.names())
def test_the_committed_parameters_serve_every_method(method, tmp_path):
    values = read_yaml(ROOT / "params.yaml")
    values["solve"]["method"] = method
    (tmp_path / "params.yaml").write_text(yaml_text(values))
    assert params.read(tmp_path / "params.yaml").solve.method == method


@pytest.mark.parametrize(
    ("solve", "sparsities"),
    [
        ({"pattern": "2:4", "sparsity": None}, {0.5}),
        ({"pattern": "1:4", "sparsity": None, "rules": [{"blocks": [1], "sparsity": 0}]}, {0.75, 0.0}),
        ({"pattern": "2:4", "rules": [{"blocks": [0], "pattern": "1:4"}]}, {0.5, 0.75}),
        ({"pattern": "2:4", "sparsity": None, "rules": [{"blocks": [0], "pattern": "unstructured"}]}, {0.5}),
        ({"pattern": "4:4", "sparsity": None, "rules": [{"blocks": [0], "pattern": "2:4"}]}, {0.0, 0.5}),
        (
            {"pattern": "1:3", "sparsity": 0.667, "rules": [{"blocks": [0], "sparsity": 0}, NARROW]},
            {0.667, 0.0},
        ),
    ],
)  # fmt: skip
def test_patterns_settle_what_goes_and_a_rule_with_sparsity_0_protects(solve, sparsities, workspace):
    w = workspace(solve={"method": "sparsegpt", **solve})
    w.run("extract", "statistics", "solve", "assemble")
    rows = LINEARS.read(w.folder / "data/solution/linears.parquet")
    assert {round(row["sparsity"], 3) for row in rows} == sparsities
    before, after = (load_file(w.folder / f"data/{name}/model.safetensors") for name in ("model", "pruned"))
    for row in rows:
        if row["sparsity"] == 0:
            name = f"{row['linear']}.weight"
            assert before[name].numpy().tobytes() == after[name].numpy().tobytes()


def test_the_linears_of_one_rule_compete_and_no_others(workspace):
    rules = [{"roles": "attention", "sparsity": 0.5}, {"roles": "mlp", "sparsity": 0.5}]
    w = workspace(solve={"method": "magnitude", "scope": "model", "sparsity": 0.2, "rules": rules})
    w.run("extract", "statistics", "solve")
    rows = LINEARS.read(w.folder / "data/solution/linears.parquet")
    for group in ("attention", "mlp"):
        ours = [row for row in rows if row["role"].startswith(group)]
        assert sum(row["kept"] for row in ours) == sum(row["weights"] for row in ours) // 2
        assert len({row["sparsity"] for row in ours}) > 1


@pytest.mark.parametrize("method", registry.names("linear"))
def test_next_to_nothing_left_is_exact_or_names_the_sparsity_and_the_width(method, workspace):
    w = workspace(solve={"method": method})
    w.run("extract", "statistics")
    for sparsity, rounded in ((0.999, "all of them"), (0.001, "none")):
        w.change(solve={"method": method, "scope": "row", "sparsity": sparsity})
        code, line = w.fail("solve")
        assert code == 2
        assert f"solve.sparsity: {sparsity} of the 32 weights of a row of model.layers.0.self_attn.q_proj" in line
        assert f"rounds to {rounded}: expected 0.031 to 0.96875" in line
    w.change(solve={"method": method, "sparsity": 0.999, "scope": "linear"})
    code, line = w.fail("solve")
    if code:
        assert "mlp.down_proj: all 48 inputs are zero with what is left of the linears before them" in line
        assert "(here sparsity is 0.999): lower it" in line
    else:
        for row in LINEARS.read(w.folder / "data/solution/linears.parquet"):
            assert row["kept"] == row["weights"] - removed_count(row["weights"], 0.999)


@pytest.mark.parametrize(
    ("method", "settings", "told"),
    [
        (
            "iht",
            {"refine": "none", "refine_steps": 3},
            "refine_steps: refine none makes no use of it: expected 10, got 3",
        ),
        ("maiht", {"refine": "none", "refine_steps": 3}, "refine_steps: refine none makes no use of it"),
        ("admm", {"penalties": 1, "penalty_end": 2.0}, "penalty_end: penalties 1 makes no use of it"),
        ("admm", {"selections": 0, "gradual": True}, "gradual: selections 0 makes no use of it"),
        ("sparsegpt", {"selection": "column", "tile": 64}, "tile: selection column makes no use of it"),
        ("newton", {"penalty": 10.0}, "penalty: form closed makes no use of it"),
        ("newton", {"form": "box", "iterations": 5}, "iterations: form box makes no use of it"),
        ("d_gating", {"weight_rate": 0.001}, "weight_rate: weights frozen makes no use of it"),
        ("d_gating", {"weights": "trained", "rank": 4}, "rank: weights trained makes no use of it"),
    ],
)
def test_a_method_setting_that_another_one_makes_useless_is_refused(method, settings, told):
    with pytest.raises(ParameterError, match=f"methods.{method}.{told}"):
        registry.load(method, settings)
    kind = registry.find(method).settings
    assert set(kind.idle) <= set(registry.settings_of(method))
    registry.load(method, {name: value for name, value in settings.items() if name not in kind.idle})
