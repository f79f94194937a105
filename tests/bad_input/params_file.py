"""params.yaml as people write it: its syntax, its sections, what YAML 1.1 would have made of it."""

from __future__ import annotations

from tests.bad_input.case import append, bad, edit, good, nothing, remove, section, write

SOLVE = "stages.solve"

CASES = [
    bad("params.yaml is missing", SOLVE, remove("params.yaml"), r"params\.yaml is not in /.*run stages from the proj"),
    bad("params.yaml is a folder", SOLVE, (remove("params.yaml"), write("params.yaml/a", "")), r"params\.yaml"),
    bad("params.yaml is empty", SOLVE, write("params.yaml", ""), r"params\.yaml.*expected", r"mapping|sections"),
    bad("params.yaml is only comments", SOLVE, write("params.yaml", "# solve:\n"), r"params\.yaml.*expected"),
    bad("params.yaml is a list", SOLVE, write("params.yaml", "- solve\n- fetch\n"), r"params\.yaml.*expected.*got"),
    bad("params.yaml is a word", SOLVE, write("params.yaml", "solve\n"), r"params\.yaml.*expected.*got"),
    bad("a bracket is not closed", SOLVE, section("solve: {method: wanda, sparsity: 0.5"), r"params\.yaml.*line \d+"),
    bad("a quote is not closed", SOLVE, section('solve: {method: "wanda, sparsity: 0.5}'), r"params\.yaml.*line \d+"),
    bad("a tab indents", SOLVE, edit("  sparsity: 0.5", "\tsparsity: 0.5"), r"params\.yaml.*line \d+"),
    bad(
        "a line is not indented",
        SOLVE,
        edit("  sparsity: 0.5", "sparsity: 0.5"),
        r"params\.yaml: .*sparsity|params\.yaml.*line \d+",
    ),
    bad("a colon lacks its space", SOLVE, edit("sparsity: 0.5", "sparsity:0.5"), r"params\.yaml.*(line \d+|sparsity)"),
    bad("a key stands twice in a section", SOLVE, edit("  sparsity: 0.5", "  sparsity: 0.5\n  sparsity: 0.7"),
        r"params\.yaml.*line \d+", r"sparsity", r"twice|duplicate"),
    bad("a section stands twice", SOLVE, append("params.yaml", "solve: {method: admm, sparsity: 0.5}\n"),
        r"params\.yaml.*line \d+", r"solve", r"twice|duplicate"),
    bad("two documents in a file", SOLVE, append("params.yaml", "---\nsolve: {method: admm}\n"),
        r"params\.yaml.*docum"),
    bad("a Latin-1 byte in a comment", SOLVE, append("params.yaml", "# caf\xe9\n".encode("latin-1")),
        r"params\.yaml", r"UTF-8"),
    bad("a null byte", SOLVE, append("params.yaml", b"# \x00\n"), r"params\.yaml"),
    bad("UTF-16", SOLVE, lambda folder: (folder / "params.yaml").write_text(
        (folder / "params.yaml").read_text() + "# ü\n", encoding="utf-16-be"), r"params\.yaml"),
    bad("an anchor that is not defined", SOLVE, section("solve: *elsewhere"), r"params\.yaml.*line \d+.*alias"),
    bad("a tag of Python's", SOLVE, edit("sparsity: 0.5", "sparsity: !!python/object/apply:os.getcwd []"),
        r"params\.yaml"),
    bad("a section is missing", SOLVE, edit("calibration:\n  sequences: 12\n  length: 16\n  seed: 0\n", ""),
        r"params\.yaml: calibration", r"required|missing|expected"),
    bad("a section is null", SOLVE, section("solve:"), r"params\.yaml: solve", r"expected|valid"),
    bad("a section is a list", SOLVE, section("solve: [wanda, 0.5]"), r"params\.yaml: solve", r"expected|valid", "got"),
    bad("a section is a number", SOLVE, section("calibration: 12"), r"params\.yaml: calibration", "got 12"),
    bad("an unknown section", SOLVE, append("params.yaml", "prune: {}\n"), r"params\.yaml: prune", "unknown",
        r"expected one of.*compute.*solve"),
    *(
        bad(f"an unknown setting of {name}", SOLVE, edit(f"{name}: {{", f"{name}: {{sparsty: 1, "),
            rf"params\.yaml: {name}\.sparsty: unknown setting", rf"expected one of.*\b{known}\b")
        for name, known in (
            ("compute", "device"), ("extract", "format"), ("statistics", "dtype"), ("assemble", "layout"),
            ("store", "limit_gb"), ("workers", "held_gb"),
        )
    ),
    bad("an unknown setting of calibration", SOLVE, edit("  length: 16\n", "  lenght: 16\n"),
        r"params\.yaml: calibration\.", r"lenght: unknown setting.*expected one of.*length|length: field required"),
    bad("an unknown setting of solve", SOLVE, edit("  pattern:", "  patern:"),
        r"params\.yaml: solve\.patern: unknown setting", r"expected one of.*\bpattern\b"),
    bad("an unknown setting of solve.units", SOLVE, edit("  rules: []", "  units: {multiples: 8}"),
        r"params\.yaml: solve\.units\.multiples: unknown setting", r"expected one of.*\bmultiple\b"),
    bad("an unknown setting of a rule", SOLVE, edit("rules: []", "rules: [{role: [mlp], sparsity: 0.1}]"),
        r"params\.yaml: solve\.rules\[0\]\.role: unknown setting", r"expected one of.*\broles\b"),
    bad("an unknown setting of fetch", SOLVE, edit("fetch:\n", "fetch:\n  training: {source: hub}\n"),
        r"params\.yaml: fetch\.training: unknown setting", r"expected one of.*\bevaluation\b"),
    bad("an unknown setting of fetch.model", SOLVE, edit("path: source/model}", "path: source/model, sha: 1}"),
        r"params\.yaml: fetch\.model.*\bsha: unknown setting", r"expected one of.*\bpath\b"),
    bad("an unknown setting of evaluate.tasks", SOLVE, edit("names: [],", "name: [],"),
        r"params\.yaml: evaluate\.tasks\.name: unknown setting", r"expected one of.*\bnames\b"),
    bad("an unknown setting of evaluate.perplexity", SOLVE, edit("{window: 16", "{windw: 16"),
        r"params\.yaml: evaluate\.perplexity\.windw: unknown setting", r"expected one of.*\bwindow\b"),
    bad("a sparsity in percent", SOLVE, edit("0.5", "50%"), r"params\.yaml: solve\.sparsity: .*got '50%'"),
    bad("a decimal comma", SOLVE, edit("0.5", "0,5"), r"params\.yaml: solve\.sparsity: .*got '0,5'"),
    bad("a sparsity that is not a number", SOLVE, edit("0.5", ".nan"), r"params\.yaml: solve\.sparsity: .*got nan"),
    bad("a sparsity that is infinite", SOLVE, edit("0.5", ".inf"), r"params\.yaml: solve\.sparsity: .*got inf"),
    bad("a sparsity that is nothing", SOLVE, edit("sparsity: 0.5", "sparsity:"), r"params\.yaml: solve\.sparsity: "),
    bad("a truth value where a number is due", SOLVE, edit("sparsity: 0.5", "sparsity: true"),
        r"params\.yaml: solve\.sparsity: .*got True"),
    bad("a truth value where a count is due", SOLVE, edit("sequences: 12", "sequences: true"),
        r"params\.yaml: calibration\.sequences: .*got True"),
    bad("a number in quotes where a count is due", SOLVE, edit("sequences: 12", 'sequences: "a dozen"'),
        r"params\.yaml: calibration\.sequences: .*got 'a dozen'"),
    bad("a fraction where a count is due", SOLVE, edit("  length: 16\n", "  length: 16.5\n"),
        r"params\.yaml: calibration\.length: .*got 16\.5"),
    bad("an option that is not there", "stages.solve --nonsense", nothing, r"unrecognized arguments: --nonsense"),
    bad("an argument that is not there", "stages.evaluate both", nothing, r"invalid choice: 'both'.*dense.*pruned"),
    # Good ways of writing.
    good("a pattern without quotes", SOLVE, edit("pattern: unstructured", "pattern: 2:4")),
    good("a pattern in quotes", SOLVE, edit("pattern: unstructured", 'pattern: "2:4"')),
    good("a switch that is on", SOLVE, edit("repeats: 1", "repeats: 1, always: on")),
    good("an exponent without a point", SOLVE, edit("sparsity: 0.5", "sparsity: 5e-1")),
    good("a number in base eight", SOLVE, edit("seed: 0", "seed: 0o7")),
    good("an empty mapping of methods", SOLVE, section("methods: {}")),
    good("a byte order mark", SOLVE, lambda folder: (folder / "params.yaml").write_bytes(
        b"\xef\xbb\xbf" + (folder / "params.yaml").read_bytes())),
    good("Windows line ends", SOLVE, lambda folder: (folder / "params.yaml").write_bytes(
        (folder / "params.yaml").read_bytes().replace(b"\n", b"\r\n"))),
]  # fmt: skip
