"""The report of a structured run: what is left of each block, and what the model costs to run."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages import report
from stages.artifacts.atomic import write_json
from stages.artifacts.manifest import sha256_of, write_manifest
from stages.measuring.speed.comparison import ratios
from stages.measuring.speed.rounds import speeds
from stages.reporting.flatten import relevant_settings
from tests.helpers.report_findings import PAGE, Elements, outputs, run, write_solution

MANIFEST = Path("data/pruned/pruning_manifest.json")
SIZES = {
    "parameters": 134_515_008, "block_parameters": 106_202_880, "weight_bytes": 538_060_032, "peak_memory_mb": 540,
    "prefill_macs": 108_000_000.0, "decode_macs": 136_000_000.0,
}  # fmt: skip


def write_layout(name="hetero"):
    blocks = [
        {"heads": 3 - (index == 4), "heads_dense": 3, "channels": 1536 - 100 * index, "channels_dense": 1536}
        for index in range(12)
    ]
    layout = {
        "name": name, "class": "SomeForCausalLM", "load": ["one(folder)", "other(folder)"], "heads_removed": True,
        "parameters": {"dense": 134_515_008, "pruned": 107_612_006},
        "block_parameters": {"dense": 106_202_880, "pruned": 79_299_878}, "blocks": blocks,
    }  # fmt: skip
    budget = {"asked": 0.25, "removed": 0.25333, "unit_parameters": {"dense": 106_168_320, "pruned": 79_265_318}}
    write_json(MANIFEST, {**json.loads(MANIFEST.read_text()), "layout": layout, "budget": budget})


def write_speed(**told):
    """What measure_speed leaves, made up: a quarter smaller, 1.25 times as fast."""
    folder = Path("data/speed")
    folder.mkdir(parents=True, exist_ok=True)
    write_manifest(folder, {"pruned": sha256_of(MANIFEST)})
    write_json(Path("metrics/speed.json"), told or measured())


def measured():
    rows = [
        {"round": index, "model": model, "phase": phase, "tokens": 64, "seconds": seconds * (1 + 0.1 * noise)}
        for model, seconds in (("dense", 0.5), ("pruned", 0.4)) for phase in ("prefill", "decode")
        for index, noise in enumerate((0, 1, -1) if model == "pruned" else (0, 0, 0))
    ]  # fmt: skip
    dense, pruned = SIZES, {name: type(size)(0.75 * size) for name, size in SIZES.items()}
    return {
        "state": "measured", "layout": "hetero", "prompt": 64, "generate": 32, "batch": 1, "repeats": 3, "warmup": 1,
        "device": "CPU (x86_64)", "threads": 2, "dtype": "float32", "attention": "sdpa",
        "dense": {**dense, **speeds(rows, "dense")}, "pruned": {**pruned, **speeds(rows, "pruned")},
        "ratio": ratios(rows, dense, pruned),
    }  # fmt: skip


def text():
    return " ".join(PAGE.read_text().split())


def table(name):
    with Path(f"data/report/plots/{name}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("layout", ["hetero", "uniform", "padded", "unheard of"])
def test_layout_parameters_and_loading_are_told(layout, workspace):
    write_layout(layout)
    assert run() == 0
    assert "the 106,168,320 parameters of heads and channels 25.00 % were to go, 25.33 % went" in text()
    assert "had 134,515,008 parameters and now has 107,612,006, 20.00 % less; of them 79,299,878 in its" in text()
    assert f"Layout <code>{layout}</code>" in text()
    assert "<code>one(folder)</code> or <code>other(folder)</code> loads it" in text()
    assert ("weights were cut out" in text()) == (layout != "padded")
    assert ("make nothing faster" in text()) == (layout == "padded")
    assert "were not measured: measure_speed did not run." in text()


def test_units_of_every_block_are_drawn_and_listed(workspace):
    write_layout()
    assert run() == 0
    assert "Kept in each of 12 blocks: 35 of 36 heads, 11832 of 18432 channels" in text()
    rows = table("units_by_block")
    assert len(rows) == 2 * 12
    assert rows[9] == {
        "block": "4",
        "curve": "channels",
        "kept_fraction": str(1136 / 1536),
        "kept": "1136",
        "dense": "1536",
    }


def test_speed_is_told_beside_what_the_macs_promise(workspace):
    write_layout()
    write_speed()
    assert run() == 0
    figures = json.loads(Path("metrics/summary.json").read_text())
    assert figures["size"] == pytest.approx(0.8, abs=1e-4)
    assert figures["memory"] == 0.75
    assert figures["prefill"] == pytest.approx(1.25, rel=0.2)
    page = Elements(PAGE.read_text())
    assert not page.open
    assert len(page.ids) == len(set(page.ids))
    assert sum(tag == "svg" for tag, _ in page.found) == 6
    assert "75.0 % are left, which would make it 1.33 times as fast; it is 1.25 times as fast, 94 % of that" in text()
    assert "1.25 \N{MULTIPLICATION SIGN}, 1.25" in text()
    assert (
        "1 prompt of 64 tokens, 32 new tokens; 3 rounds after 1 of warm-up; CPU (x86_64), 2 threads, float32" in text()
    )
    assert "<td>128.00</td><td>160.00</td><td>1.250 <small>1.136 to 1.389</small></td>" in text()
    rows = {row["figure"]: row for row in table("speed")}
    assert len(rows) == 8
    assert float(rows["peak memory, MB"]["ratio"]) == 0.75
    assert float(rows["decode, tokens a second"]["highest"]) == pytest.approx(1.25 / 0.9)
    first = outputs()
    assert run() == 0
    assert outputs() == first


def test_the_short_table_has_sizes_and_speeds(workspace, capsys):
    write_layout()
    run()
    report.show()
    lines = capsys.readouterr().out.splitlines()
    assert next(line.split()[-2:] for line in lines if line.startswith("parameters, millions")) == ["134.5", "107.6"]
    write_speed()
    run()
    report.show()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-2:] for line in lines if "tokens a second" in line] == 2 * [["128.0", "160.0"]]
    assert next(line.split()[-2:] for line in lines if line.startswith("peak memory, MB")) == ["540.0", "405.0"]


def test_an_unstructured_run_says_nothing_of_either(workspace):
    write_speed(state="off", reason="unstructured zeros make nothing faster")
    assert run() == 0
    for told in ("What is left of each block", "What it costs to run", "were not measured"):
        assert told not in text()
    assert table("units_by_block") == table("speed") == []
    assert json.loads(Path("data/report/summary.json").read_text())["structure"] is None


def test_a_structured_run_that_was_not_measured_says_why(workspace):
    write_layout()
    write_speed(state="off", reason="evaluate.speed.repeats is 0")
    assert run() == 0
    assert "Its speed and memory were not measured: evaluate.speed.repeats is 0." in text()


def test_zeros_that_were_measured_all_the_same_are_shown(workspace):
    write_speed(**(measured() | {"layout": "dense"}))
    assert run() == 0
    assert "What it costs to run" in text()
    assert "What is left of each block" not in text()
    assert "Unstructured zeros make nothing faster" in text()


def test_speed_of_another_pruned_model_is_not_shown(workspace, capsys):
    write_speed()
    write_layout()
    assert run() == 2
    assert "data/speed belongs to another pruned model" in capsys.readouterr().err


def test_settings_that_mean_nothing_to_the_method_are_left_out():
    solve = {"method": "one", "sparsity": 0.2, "pattern": "unstructured", "refit_steps": 10, "units": {"multiple": 1}}
    assert relevant_settings(solve, ["units"]).keys() == {"method", "sparsity", "units"}
    assert relevant_settings(solve, ["width"]).keys() == {"method", "sparsity"}
    assert relevant_settings(solve, ["2:4"]).keys() == {"method", "sparsity", "pattern", "refit_steps"}


def test_errors_are_told_of_what_reads_units_where_the_rest_only_loses_rows(workspace):
    write_solution(0.5)
    rows = pq.read_table("data/solution/linears.parquet").to_pylist()
    for row in rows:
        row |= {"pattern": "units"} | ({"relative_error": 0.0} if row["role"] == "attention.q" else {})
    pq.write_table(pa.Table.from_pylist(rows), "data/solution/linears.parquet")
    write_manifest(Path("data/solution"), {"solve": {"method": "newton", "inputs": "pruned"}, "settings": {}})
    assert run() == 0
    summary = json.loads(Path("data/report/summary.json").read_text())
    assert summary["exact_roles"] == ["attention.q"]
    errors = [row["relative_error"] for row in rows if row["role"] != "attention.q"]
    assert summary["pruned"]["relative_error"] == pytest.approx(sum(errors) / len(errors))
    assert "Relative error by block, a line for each role: mlp.down" in text()
    assert "removed by wanda, whole heads and channels, solved on pruned inputs" in text()
    assert "attention.q only lose rows with the units that those make" in text()
