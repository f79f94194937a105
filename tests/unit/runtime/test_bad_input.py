"""Bad input inside one process: faults that a test patches in; tests/bad_input goes through the shell."""

from __future__ import annotations

import errno

import pytest
from safetensors.torch import load_file, save_file

from stages import params
from stages.artifacts.manifest import write_manifest
from stages.errors import ParameterError
from stages.runtime import disk
from stages.runtime import stage as runner
from stages.solving import walk as solving
from tests.helpers.tiny import write_params

BEFORE = ("extract", "statistics")


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"methods": {"obs": {}}}, r"params\.yaml: methods\.obs: unknown method 'obs': expected one of: admm, alps"),
        (
            {"fetch": {"model": {"source": "wheel", "package": "x", "sha256": "1", "member": "m"}}},
            r"model\.package: ",
        ),
        ({"fetch": {"model": {"id": "a/b", "revision": "main"}}}, r"fetch\.model\.source: this setting is required"),
        ({"fetch": {"model": {"source": "hub", "id": "a/b"}}}, r"fetch\.model\.revision: this setting is required"),
        (
            {"fetch": {"model": {"source": "local", "path": "x", "dtyp": "auto"}}},
            r"fetch\.model\.dtyp: .* dtype\?",
        ),
        (
            {"fetch": {"model": {"source": "hub", "id": "a/b", "revision": 10}}},
            r"revision: .*, got 10: put it in q",
        ),
        ({"evalaute": {}}, r"params\.yaml: evalaute: unknown setting 'evalaute': did you mean evaluate\?"),
        ({"solve": {"refit_ridge": float("inf")}}, r"solve\.refit_ridge: input should be a finite number, got inf"),
    ],
)
def test_a_wrong_parameter_is_named_in_one_line(sections, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path, **sections)
    with pytest.raises(ParameterError, match=told):
        params.read()
    assert runner.run_stage("solve", lambda run: pytest.fail("the stage ran"), ()) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 1
    assert errors[0].startswith("solve: error: params.yaml: ")


def newton(sparsity=0.3, **given):
    return {"solve": {"method": "newton", "sparsity": sparsity, **given}}


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        (newton(rules=[{"sparsity": 0.1}, {"pattern": "2:4"}]), "solve.rules[1].pattern: with newton a rule gives"),
        (newton(rules=[{"scope": "row"}]), "solve.rules[0].scope: with newton a rule gives"),
        (newton(rules=[{"refit": "none"}]), "solve.rules[0].refit: with newton a rule gives"),
        (newton(rules=[{"settings": {}}]), "solve.rules[0].settings: with newton a rule gives"),
        (
            newton(rules=[{"roles": ["attention.o", "mlp"], "sparsity": 0}]),
            "newton removes whole units: expected attention (heads) or mlp (channels), got attention.o",
        ),
        (
            newton(rules=[{"blocks": [0], "sparsity": 0}, {"roles": ["attention"], "sparsity": 0.8}]),
            "solve.rules[1].sparsity: 0.8 would leave block 1 no heads of its 2: expected at most 0.500",
        ),
        (
            newton(rules=[{"roles": ["mlp"], "sparsity": 0.7}], units={"multiple": 16}),
            "solve.rules[0].sparsity: 0.7 would leave block 0 no channels of its 48: expected at most 0.667",
        ),
        (newton(sparsity=1.0), "solve.sparsity: 1.0000 of the units' parameters are to go"),
        (newton(rules=[{"sparsity": 0}]), "at most 0.0000 can, because every block keeps one head and one channel and"),
        (
            newton(units={"multiple": 8, "ranking": "literal"}),
            "solve.units.multiple: ranking: literal puts one threshold",
        ),
        (
            {"solve": {"method": "wanda_units", "sparsity": 0.3, "rules": [{"roles": ["mlp"], "sparsity": 0}]}},
            "solve.sparsity: 0.3 cannot be met with the same widths in every block: lower it, protect less, or set",
        ),
        (
            {"solve": {"method": "obs_units", "sparsity": 0.3, "units": {"choice": "pruned"}}},
            "solve.units.choice: obs_units scores units by gradients, which are the dense model's: expected dense",
        ),
    ],
)
def test_what_whole_units_cannot_do_is_told_before_anything_is_solved(sections, told, workspace):
    w = workspace(solve={"method": "newton", "sparsity": 0.1})
    w.run(*BEFORE, "solve")
    good = w.bytes_of("solution")
    w.change(**sections)
    code, line = w.fail("solve")
    assert (code, told in line) == (2, True), line
    assert w.bytes_of("solution") == good


@pytest.mark.parametrize(
    ("units", "told"),
    [
        ({"allocation": "owl"}, r"solve\.units\.allocation: .*got 'owl'"),
        ({"multiple": 0}, r"solve\.units\.multiple: .*got 0"),
    ],
)
def test_a_wrong_setting_of_units_is_named(units, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path, solve={"method": "newton", "units": units})
    with pytest.raises(ParameterError, match=told):
        params.read()


def test_an_architecture_whose_roles_are_unknown_is_told(workspace, monkeypatch):
    from stages.models import structure

    w = workspace()
    w.run(*BEFORE)
    monkeypatch.setattr(structure, "role_of", lambda name: "other" if "o_proj" in name else f"mlp.{name}")
    w.change(**newton())
    code, line = w.fail("solve")
    assert code == 2
    assert "block 0: its linears are " in line
    assert "use a layer-wise method, or add the names of the linears to stages/models/roles.py" in line


@pytest.mark.parametrize("method", ["admm", "newton"])
def test_one_sequence_leaves_nothing_to_hold_out_of_a_correction(method, workspace):
    w = workspace(calibration={"sequences": 1}, solve={"method": method})
    w.run(*BEFORE)
    code, line = w.fail("solve")
    assert code == 2
    assert "calibration.sequences: corrections hold some out: expected at least 2, got 1" in line
    w.change(calibration={"sequences": 1}, solve={"method": method, "target": "dense"})
    w.run("solve")


def spoil(folder, name, value):
    path = folder / "data/model/model.safetensors"
    state = load_file(path)
    state[name][0, 0] = value
    save_file(state, path, {"format": "pt"})
    write_manifest(folder / "data/model", {"source": {}})


@pytest.mark.parametrize("method", ["magnitude", "magnitude_units", "newton", "wanda_units"])
def test_weights_that_are_not_finite_name_block_and_linear(method, workspace):
    w = workspace(solve={"method": method, "sparsity": 0.5})
    w.run(*BEFORE)
    spoil(w.folder, "model.layers.2.mlp.down_proj.weight", float("nan"))
    w.run(*BEFORE)
    code, line = w.fail("solve")
    assert code == 2
    assert "block 2: the weights of model.layers.2.mlp.down_proj are not finite" in line


def test_activations_that_are_not_finite_name_the_block(workspace):
    w = workspace()
    spoil(w.folder, "model.layers.1.self_attn.v_proj.weight", float("inf"))
    code, line = w.fail("extract")
    assert code == 2
    assert "block 1 gives hidden states that are not finite" in line


def test_parameters_that_change_during_a_run_stop_it_before_anything_is_published(workspace, monkeypatch):
    w = workspace()
    w.run(*BEFORE, "solve")
    good, original = w.bytes_of("solution"), solving.write_block

    def change_meanwhile(*args):
        w.change(solve={"sparsity": 0.9})
        return original(*args)

    w.change(solve={"sparsity": 0.6})
    monkeypatch.setattr(solving, "write_block", change_meanwhile)
    code, line = w.fail("solve")
    assert code == 2
    assert "params.yaml: solve changed while solve was running: nothing was written" in line
    assert w.bytes_of("solution") == good


def test_parameters_of_other_methods_may_change_during_a_run(workspace, monkeypatch):
    w = workspace()
    w.run(*BEFORE)
    original = solving.write_block

    def change_meanwhile(*args):
        w.change(methods={"wanda": {"activation_power": 0.7}})
        return original(*args)

    monkeypatch.setattr(solving, "write_block", change_meanwhile)
    w.run("solve")


def test_a_full_disk_is_one_line_and_nothing_half_written(workspace, monkeypatch):
    w = workspace()
    w.run(*BEFORE, "solve")
    good = w.bytes_of("solution")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    w.change(solve={"sparsity": 0.6})
    monkeypatch.setattr(solving, "write_block", full)
    code, line = w.fail("solve")
    assert code == 2
    assert "the disk is full" in line
    assert w.bytes_of("solution") == good


def test_too_small_a_disk_is_told_before_the_work(workspace, monkeypatch):
    w = workspace()
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: disk.shutil._ntuple_diskusage(1, 1, 0))
    code, line = w.fail("extract")
    assert code == 2
    assert "the disk is too small for the activations" in line
