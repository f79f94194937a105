"""Methods: settings that a method has not, values that a setting cannot have, what methods cannot do together."""

from __future__ import annotations

from stages.methods import registry
from tests.bad_input.case import Case, Change, bad, both, section

SOLVE = "stages.solve"


def wrong(method: str, setting: str, value: object, *told: str) -> Case:
    """A setting of a method with a value that it cannot have."""
    return bad(f"{method}.{setting} is {value}", SOLVE, _of(method, f"{setting}: {value}"),
               rf"methods\.{method}\.{setting}\b", *told)  # fmt: skip


def _of(method: str, settings: str) -> Change:
    """solve with a method (in a rule where it prunes q and k) and its settings."""
    if registry.find(method).joint:
        rule = f"{{roles: [attention.q, attention.k], method: {method}, settings: {{{settings}}}}}"
        return section(f"solve: {{method: wanda, sparsity: 0.3, rules: [{rule}]}}")
    return both(
        section(f"solve: {{method: {method}, sparsity: 0.3}}"), section(f"methods: {{{method}: {{{settings}}}}}")
    )


def solve(text: str) -> Change:
    """`solve` written anew in one line."""
    return section(f"solve: {{{text}}}")


CASES = [
    *(
        bad(f"an unknown setting of {name}", SOLVE, _of(name, "nonsense: 1"),
            rf"methods\.{name}: unknown setting 'nonsense': expected one of: ")
        for name in ("magnitude", "wanda", "admm", "attention_iht", "newton", "wanda_units", "d_gating", "slicegpt")
    ),
    wrong("wanda", "activation_power", "high", "got 'high'"),
    wrong("sparsegpt", "tile", 0, "expected at least 1, got 0"),
    wrong("sparsegpt", "damping", -0.1, r"got -0\.1"),
    wrong("sparsegpt", "selection", "block", "got 'block'"),
    wrong("admm", "iterations", 0, "got 0"),
    wrong("admm", "relaxation", 2.5, r"got 2\.5"),
    wrong("alps", "tolerance", -1, "got -1"),
    wrong("iht", "schedule", "linear", "got 'linear'"),
    wrong("maiht", "mu", -1, "got -1"),
    wrong("attention_gd", "score", "best", "got 'best'"),
    wrong("attention_iht", "start", "attention_gd", "got '?attention_gd"),
    wrong("newton", "removed", 1.5, r"expected a fraction in \(0, 1\)"),
    wrong("newton", "form", "open", "got 'open'"),
    wrong("obs_units", "rounds", 0, "got 0"),
    wrong("flap", "metric", "mean", "got 'mean'"),
    wrong("llm_pruner", "order", "third", "got 'third'"),
    wrong("d_gating", "depth", 1, "got 1"),
    wrong("d_gating", "weights", "all", "got 'all'"),
    wrong("slicegpt", "round", 0, "got 0"),
    bad("settings that are a list", SOLVE, section("methods: {wanda: [1.0]}"), r"methods\.wanda", r"got \[1\.0\]"),
    bad("settings that are nothing", SOLVE, section("methods: {wanda: }"), r"methods\.wanda"),
    # What methods of whole heads and channels cannot do.
    bad("a pattern of whole units", SOLVE, solve("method: newton, sparsity: 0.3, pattern: '3:4'"),
        r"solve\.pattern: newton removes whole heads and channels: expected unstructured, got 3:4"),
    bad("a scope of whole units", SOLVE, solve("method: flap, sparsity: 0.3, scope: row"),
        r"solve\.scope: flap removes whole heads and channels: expected auto, got row"),
    bad("a refit of whole units", SOLVE, solve("method: newton, sparsity: 0.3, refit: cg"),
        r"solve\.refit: newton removes whole heads and channels: expected none, got cg"),
    bad("an allocation of weights for whole units", SOLVE, solve("method: newton, sparsity: 0.3, allocation: owl"),
        r"solve\.allocation: newton removes whole heads and channels: expected uniform, got owl"),
    bad("another method in a rule of whole units", SOLVE,
        solve("method: newton, sparsity: 0.3, rules: [{method: wanda, settings: {}}]"),
        r"solve\.rules\[0\]\.method: with newton a rule gives roles"),
    bad("a part of a head in a rule of whole units", SOLVE,
        solve("method: newton, sparsity: 0.3, rules: [{roles: [attention.o], sparsity: 0}]"),
        r"newton removes whole units: expected attention \(heads\) or mlp \(channels\), got attention\.o"),
    bad("whole units in a rule", SOLVE, solve("method: wanda, sparsity: 0.3, rules: [{method: flap, settings: {}}]"),
        "flap removes whole heads and channels of all blocks: give it as solve.method, not in a rule"),
    bad("more whole units than can go", SOLVE, solve("method: newton, sparsity: 0.95"),
        r"solve\.sparsity: 0\.9500 of the units' parameters are to go, at most 0\.\d+ can"),
    bad("wider multiples than channels", SOLVE, solve("method: newton, sparsity: 0.3, units: {multiple: 64}"),
        r"solve\.units\.multiple: expected at most the 48 channels of block 0, got 64"),
    bad("units chosen by pruned inputs where gradients score", SOLVE,
        solve("method: llm_pruner, sparsity: 0.3, units: {choice: pruned}"),
        r"solve\.units\.choice: llm_pruner scores units by gradients.*expected dense"),
    bad("a literal ranking in uniform widths", SOLVE,
        solve("method: newton, sparsity: 0.3, units: {allocation: uniform, ranking: literal}"),
        r"solve\.units\.allocation: ranking: literal puts one threshold"),
    bad("an unknown ranking", SOLVE, solve("method: newton, sparsity: 0.3, units: {ranking: count}"),
        r"solve\.units\.ranking: .*got 'count'"),
    bad("an unknown compensation", SOLVE, solve("method: newton, sparsity: 0.3, units: {compensation: mean}"),
        r"solve\.units\.compensation: .*got 'mean'"),
    bad("a negative damping of units", SOLVE, solve("method: newton, sparsity: 0.3, units: {damping: -1}"),
        r"solve\.units\.damping: .*got -1"),
    # Settings that would be ignored.
    bad("units beside a layer-wise method", SOLVE, solve("method: wanda, sparsity: 0.5, units: {multiple: 8}"),
        r"solve\.units\.multiple: wanda removes single weights: expected 1, got 8"),
    bad("a refit beside a method of the attention matrix", SOLVE, solve(
        "method: wanda, sparsity: 0.5, rules: [{roles: [attention.q, attention.k], method: attention_iht, refit: cg, "
        "settings: {}}]"), r"solve\.rules\[0\]\.refit", "attention_iht", r"expected none, got cg|take"),
    bad("an attention method for one linear", SOLVE, solve(
        "method: wanda, sparsity: 0.5, rules: [{roles: [attention.q], method: attention_gd, settings: {}}]"),
        r"attention_gd prunes attention\.q and attention\.k together, got attention\.q"),
    bad("an attention method for everything", SOLVE, solve("method: attention_iht, sparsity: 0.5"),
        r"attention_iht prunes attention\.q and attention\.k together", r"roles: \[attention\.q, attention\.k\]"),
    bad("slices in a rule", SOLVE, solve("method: wanda, sparsity: 0.5, rules: [{method: slicegpt, settings: {}}]"),
        "slicegpt slices the whole model: give it as solve.method, without rules"),
    bad("rules beside slices", SOLVE, solve("method: slicegpt, sparsity: 0.3, rules: [{roles: [mlp], sparsity: 0}]"),
        r"solve\.rules", "slicegpt"),
    bad("a pattern of slices", SOLVE, solve("method: slicegpt, sparsity: 0.5, pattern: '2:4'"),
        r"solve\.pattern", "slicegpt", "expected unstructured, got 2:4"),
    bad("a method of LoRA without a rank", SOLVE, both(
        solve("method: d_gating, sparsity: 0.3"), section("methods: {d_gating: {weights: lora, rank: 0}}")),
        r"methods\.d_gating\.rank", "got 0"),
]  # fmt: skip
