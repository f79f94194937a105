"""The report: deterministic, whole in itself, and never without the dense row."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from stages import params, report
from stages.artifacts.atomic import write_json
from stages.artifacts.manifest import write_manifest
from stages.reporting.terminal import short_table
from tests.helpers.committed import ROOT
from tests.helpers.report_findings import PAGE, ROLES, Elements, outputs, run, tell, write_attention, write_solution


def test_the_same_findings_give_the_same_bytes(workspace):
    assert run() == 0
    first = outputs()
    assert run() == 0
    assert outputs() == first
    plots = {"error_by_block", "sparsity_by_linear", "attention_by_block", "units_by_block", "speed", "perplexity"}
    assert set(first) == {"index.html", "summary.json", *(f"{name}.csv" for name in plots | {"images"})}


def test_the_page_needs_nothing_but_itself(workspace):
    write_attention()
    run()
    text = PAGE.read_text()
    page = Elements(text)
    assert not page.open
    assert not {"script", "link", "img", "iframe", "image"} & {tag for tag, _ in page.found}
    for _, attributes in page.found:
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith("#")
    assert set(re.findall(r"https?://[^\"' <)]*", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "url(http" not in text
    assert "@import" not in text


@pytest.mark.parametrize("count", [4, 6])
def test_figures_are_told_to_those_who_cannot_see_them_and_their_ids_differ(count, workspace):
    if count == 6:
        write_attention()
    run()
    page = Elements(PAGE.read_text())
    labels = [attributes.get("aria-labelledby") for tag, attributes in page.found if tag == "svg"]
    assert len(labels) == count
    assert all(label in page.ids for label in labels)
    assert len(page.ids) == len(set(page.ids))


def test_the_dense_row_the_protocol_and_the_plain_truth_are_shown(workspace):
    run()
    text = PAGE.read_text()
    assert re.search(r'<th scope="row">dense</th><td>29\.09</td>', text)
    assert re.search(r'<th scope="row">pruned</th><td>44\.07</td>\s*<td>\+51\.5 %</td>', text)
    assert "a text &amp; how it was cut" in text
    assert "Unstructured zeros make nothing faster" in text
    assert "someone/&lt;model&gt;" in text
    assert "&lt;news&gt;" in text


def test_prompts_that_were_cut_are_told_beside_the_figures_and_counts_are_no_metrics(workspace, capsys):
    run()
    assert "longest input" not in PAGE.read_text()
    for model in ("dense", "pruned"):
        path = Path(f"metrics/{model}.json")
        told = json.loads(path.read_text())
        told["tasks"]["topics"] |= {"truncated": 3, "tokens_cut": 70}
        write_json(path, told)
    run()
    text = PAGE.read_text()
    assert "topics, pruned model: 3 of 200 prompts were cut to the longest input, 70 tokens lost" in text
    assert ">topics, acc (n = 200)<" in text
    assert "topics, fewshot" not in text
    assert report.show() == 0
    told = capsys.readouterr().out
    assert "3 of 200 prompts were cut" in told
    assert "topics, fewshot" not in told


@pytest.mark.parametrize("sparsity", [0.0, 1.0])
def test_nothing_or_everything_removed_can_be_shown(workspace, sparsity):
    write_solution(sparsity, damping=None)
    tell(sparsity=sparsity, linears={"sparsity": sparsity})
    assert run() == 0
    assert json.loads(Path("data/report/summary.json").read_text())["pruned"]["sparsity"] == sparsity


def test_weights_that_no_linear_covers_and_little_calibration_text_are_told(workspace):
    assert run() == 0
    assert not any(words in PAGE.read_text() for words in ("stay dense", "Little calibration text"))
    calibration = {"sequences": 2, "length": 100, "widest": {"linear": "layers.0.down", "inputs": 1536}}
    tell(sparsity=0.07, covered=0.14, block_weights=600_000, calibration=calibration)
    assert run() == 0
    page = " ".join(PAGE.read_text().split())
    assert "<b>7.00 %</b>" in page
    assert "50.00 % of the weights of 24 linears removed" in page
    assert "These linears hold 14.0 % of the 600,000 weights of the blocks" in page
    assert "of rank at most 200 for inputs of width 1536" in page
    summary = json.loads(Path("data/report/summary.json").read_text())
    table = short_table(summary, report.defaults_of(summary), PAGE)
    rows = {line.split("  ")[0]: line.split()[-2] for line in table.splitlines() if line.endswith("%")}
    figures = json.loads(Path("metrics/summary.json").read_text())
    assert (figures["sparsity"], figures["covered"]) == (0.07, 0.14)
    assert rows == {"sparsity": "7.00", "block weights in linears": "14.00", "sparsity of linears": "50.00"}


def test_linears_that_were_tried_again_are_named(workspace):
    run()
    assert "solved at the first attempt" in PAGE.read_text()
    write_solution(0.5, attempts=3)
    run()
    assert "layers.0.mlp.down (3 attempts, damping 0.0100)" in PAGE.read_text()


def test_the_plots_hold_a_row_a_linear_and_the_dense_perplexity(workspace):
    run()
    with Path("data/report/plots/error_by_block.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12 * len(ROLES)
    assert rows[3] == {"block": "1", "role": "mlp.down", "relative_error": "0.01", "linear": "layers.1.mlp.down"}
    assert Path("data/report/plots/perplexity.csv").read_text() == "model,perplexity\ndense,29.09\npruned,44.07\n"


def test_two_protocols_are_never_put_side_by_side(workspace, capsys):
    run()
    before = outputs()
    write_json(Path("data/evaluation/pruned/protocol.json"), {"perplexity": "another", "tasks": "lm-eval", "text": {}})
    assert run() == 2
    assert "measured in two ways" in capsys.readouterr().err
    assert outputs() == before


@pytest.mark.parametrize("path", ["metrics/dense.json", "data/solution/linears.parquet", "data/solution/manifest.json"])
def test_what_is_missing_is_named(workspace, capsys, path):
    Path(path).unlink()
    assert run() == 2
    assert f"{path} is missing" in capsys.readouterr().err
    assert not PAGE.exists()


def test_the_short_table_has_both_models_the_stages_and_the_page(workspace, capsys):
    assert report.show() == 2
    assert (
        "data/report/summary.json is missing: run the stage that writes it: `dvc repro report`"
        in capsys.readouterr().err
    )
    run()
    assert report.show() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["someone/<model>", "dense", "pruned"]
    assert lines[1].split() == ["perplexity", "29.09", "44.07"]
    assert [line.split()[:2] for line in lines if line.startswith(("fetch", "solve"))] == [
        ["fetch", "25.0"],
        ["solve", "95.5"],
    ]
    assert lines[-1] == "report: data/report/index.html"


def test_a_summary_of_another_version_is_told(workspace, capsys):
    run()
    path = Path("data/report/summary.json")
    summary = json.loads(path.read_text())
    del summary["notes"]
    write_json(path, summary)
    assert report.show() == 2
    assert "data/report/summary.json: expected 'notes' in it, got [" in capsys.readouterr().err


def told_of(workspace, capsys, **manifest):
    """The lines of --show that say how the model was pruned."""
    facts = {"solve": {"method": "wanda", "inputs": "pruned"}, "settings": {}, **manifest}
    write_manifest(Path("data/solution"), facts)
    assert run() == 0
    capsys.readouterr()
    assert report.show() == 0
    return dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line)


def test_the_short_table_names_method_settings_pattern_layout_and_calibration(workspace, capsys):
    solve = params.read(ROOT / "params.yaml").solve.model_dump(mode="json")
    told = told_of(workspace, capsys, solve={**solve, "method": "wanda"}, settings={"wanda": {"activation_power": 1.0}})
    told = {name: value.strip() for name, value in told.items()}
    assert told["method"] == "wanda"
    assert told["settings"] == "the defaults"
    assert (told["pattern"], told["layout"]) == ("unstructured", "dense")
    tell(source={}, calibration={"text": {"name": "some news"}, "sequences": 16, "length": 512})
    changed = {**solve, "method": "wanda", "refit": "cg", "units": {**solve["units"], "multiple": 64}}
    told = told_of(workspace, capsys, solve=changed, settings={"wanda": {"activation_power": 0.5}})
    told = {name: value.strip() for name, value in told.items()}
    assert told["method"] == "wanda (activation_power 0.5)"
    assert told["settings"] == "refit cg"
    assert told["calibration"] == "some news, 16 x 512 tokens"


def test_dvc_is_given_the_few_figures_that_runs_are_compared_by(workspace):
    run()
    figures = json.loads(Path("metrics/summary.json").read_text())
    assert list(figures) == ["perplexity", "perplexity_dense", "topics", "topics_dense", "sparsity"]
    assert (figures["perplexity"], figures["topics_dense"], figures["sparsity"]) == (44.07, 0.2909, 0.5)


def test_attention_matrices_are_told_in_words_figures_and_plots(workspace):
    write_attention()
    assert run() == 0
    text = " ".join(PAGE.read_text().split())
    assert "by 43.3 % of their squared size in the mean over the blocks, most in block 2 (80.0 %)" in text
    assert "on the calibration text by 21.7 %" in text
    assert "8 sequences of 256 tokens of each text" in text
    summary = json.loads(Path("data/report/summary.json").read_text())["attention"]
    assert summary["held_out"]["own"]["worst"] == pytest.approx(0.8)
    with Path("data/report/plots/attention_by_block.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 12
    assert rows[2] == {"block": "2", "curve": "calibration, dense inputs", "relative_error": "0.2"}


@pytest.mark.parametrize("error", [0.0, 0.5])
def test_equal_attention_matrices_can_be_shown(error, workspace):
    write_attention(error)
    assert run() == 0
    assert "What pruning did to the attention matrices" in PAGE.read_text()


def test_attention_that_was_not_measured_is_left_out_or_told_why(workspace):
    run()
    assert "attention matrices" not in PAGE.read_text()
    write_attention(state="off", reason="evaluate.attention.sequences is 0")
    assert run() == 0
    assert "attention matrices" not in PAGE.read_text()
    write_attention(state="unreachable", reason="block 0 of Some <Model> has none")
    assert run() == 0
    assert "Not measured: block 0 of Some &lt;Model&gt; has none." in PAGE.read_text()


def test_attention_of_another_pruned_model_is_not_shown(workspace, capsys):
    write_attention()
    write_json(Path("data/pruned/pruning_manifest.json"), {"source": {}})
    assert run() == 2
    assert "data/attention belongs to another pruned model" in capsys.readouterr().err
