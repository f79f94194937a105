"""solve.rules: rules that match nothing, that never decide, that cannot be met, and old ways of writing them."""

from __future__ import annotations

from tests.bad_input.case import Case, bad, edit, good

SOLVE = "stages.solve"


def rule(name: str, text: str, *told: str) -> Case:
    """Bad rules, as they stand in the list."""
    return bad(name, SOLVE, edit("rules: []", f"rules: [{text}]"), *told)


def fine(name: str, text: str) -> Case:
    """Good rules."""
    return good(name, SOLVE, edit("rules: []", f"rules: [{text}]"))


CASES = [
    rule("a rule that is a word", "mlp", r"solve\.rules\.?\[?0", "got 'mlp'"),
    rule("an unknown role", "{roles: [mlp.gat], sparsity: 0}",
         r"solve\.rules\[0\]\.roles\[0\]: unknown role 'mlp\.gat'",
         r"expected one of: .*mlp\.gate"),
    rule("a role that the model has not", "{roles: [mlp.fc], sparsity: 0}", r"solve\.rules.*(roles|match)"),
    rule("no roles at all", "{roles: [], sparsity: 0}", r"solve\.rules"),
    rule("a block that is not there", "{blocks: [3], sparsity: 0}", r"solve\.rules\[0\]\.blocks", r"\b0 to 2\b",
         r"\b3\b"),
    rule("one of two blocks is not there", "{blocks: [0, 7], sparsity: 0}", r"solve\.rules\[0\]\.blocks", "0 to 2",
         r"\b7\b"),
    rule("a block before the first", "{blocks: [-4], sparsity: 0}", r"solve\.rules\[0\]\.blocks", "0 to 2", "-4"),
    rule("a range beyond the last block", '{blocks: "1-5", sparsity: 0}', r"solve\.rules\[0\]\.blocks", "0 to 2", "5"),
    rule("a range the wrong way round", '{blocks: "2-0", sparsity: 0}', r"solve\.rules.*blocks", "2-0"),
    rule("a range in words", "{blocks: first, sparsity: 0}", r"solve\.rules.*blocks", "0-2", "'first'"),
    rule("a range without an end", "{blocks: {from: 1}, sparsity: 0}", r"solve\.rules.*blocks"),
    rule("no blocks at all", "{blocks: [], sparsity: 0}", r"solve\.rules.*blocks"),
    rule("a block that is a fraction", "{blocks: [0.5], sparsity: 0}", r"solve\.rules.*blocks", r"0\.5"),
    rule("a rule behind one that takes everything", "{sparsity: 0.4}, {roles: [mlp], sparsity: 0.1}",
         r"solve\.rules\[1\]", r"rules\[0\]|before|first"),
    rule("the same rule twice", "{roles: [mlp], sparsity: 0.4}, {roles: [mlp], sparsity: 0.1}", r"solve\.rules\[1\]",
         r"rules\[0\]|before|first"),
    rule("a rule hidden by two others", "{blocks: [0], sparsity: 0.4}, {blocks: '1-2', sparsity: 0.4}, {roles: "
         "[attention], sparsity: 0.1}", r"solve\.rules\[2\]", r"rules\[0\]|before|first"),
    rule("an unknown method in a rule", "{method: wandda, settings: {}}", "unknown method 'wandda'",
         r"expected one of.*\bwanda\b"),
    rule("another method without its settings", "{method: magnitude}",
         r"solve.*rules\[0\]: it uses magnitude, whose settings must stand in the rule itself: add `settings: \{\}`"),
    rule("wrong settings in a rule", "{method: sparsegpt, settings: {til: 1}}",
         r"(solve\.rules\[0\]\.settings|methods\.sparsegpt).*unknown setting 'til'", "expected one of.*tile"),
    rule("a sparsity above one in a rule", "{sparsity: 2}", r"solve\.rules\[0\]\.sparsity: .*got 2"),
    rule("a pattern of a rule that does not divide", "{roles: [mlp.down], pattern: '5:7'}",
         r"solve\.(rules\[0\]\.)?pattern: 5:7 does not divide the 48 inputs", "use another group size"),
    rule("a scope that the rule's method has not", "{scope: model}", r"scope: wanda works in row, linear, got model"),
    bad("rules that are a mapping", SOLVE, edit("rules: []", "rules: {roles: [mlp], sparsity: 0}"), r"solve\.rules",
        "list|tuple|array"),
    bad("rules that are nothing", SOLVE, edit("rules: []", "rules:"), r"solve\.rules", "list|tuple|array"),
    fine("a role that is no list", "{roles: attention, sparsity: 0}"),
    fine("first and last block", "{blocks: [0, -1], sparsity: 0}"),
    fine("a range of blocks as text", '{blocks: "0-1", sparsity: 0.1}'),
    fine("a range of blocks as a mapping", "{blocks: {from: 1, to: 2}, sparsity: 0.1}"),
    fine("a list of a block and a range", '{blocks: [0, "1-2"], roles: [mlp], sparsity: 0.1}'),
]  # fmt: skip
