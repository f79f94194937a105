"""What the machine does not grant: permissions, room on the disk, memory, a network, a Prefect server."""

from __future__ import annotations

from tests.bad_input.case import Limits, bad, both, edit, good, nothing, read_only, remove, section, unreadable

OBEYS = Limits(writes_anywhere=False)

CASES = [
    bad("outputs in a read-only folder", "stages.statistics", read_only("data"), r"data", "permission|read-only|write",
        limits=OBEYS),
    bad("metrics in a read-only folder", "stages.report", read_only("metrics/cost"), r"metrics/cost",
        "permission|read-only|write", limits=OBEYS),
    bad("a read-only block store", "stages.solve", (edit("0.5", "0.6"), read_only(".cache/blocks/solve")),
        r"\.cache/blocks/solve", "permission|read-only|write", limits=OBEYS),
    bad("a read-only project", "stages.solve", (edit("0.5", "0.6"), read_only(".", "data", ".cache", ".cache/blocks",
        ".cache/blocks/solve", "metrics", "metrics/cost")), "permission|read-only|write", limits=OBEYS),
    bad("params.yaml that may not be read", "stages.solve", unreadable("params.yaml"),
        r"params\.yaml", "permission|read", limits=OBEYS),
    bad("a text that may not be read", "stages.fetch", unreadable("source/calibration.jsonl"),
        r"source/calibration\.jsonl", "permission|read", limits=OBEYS),
    bad("weights that may not be read", "stages.extract",
        unreadable("data/model/model.safetensors"), r"data/model/model\.safetensors",
        "permission|read", limits=OBEYS),
    bad("a file that may not grow (solve)", "stages.solve", edit("0.5", "0.6"), "large|size|disk|quota", "free|limit",
        limits=Limits(file_bytes=4096)),
    bad("a file that may not grow (fetch)", "stages.fetch", nothing, "large|size|disk|quota", "free|limit",
        limits=Limits(file_bytes=16384)),
    bad("a file that may not grow (assemble)", "stages.assemble", nothing, "large|size|disk|quota", "free|limit",
        limits=Limits(file_bytes=16384)),
    bad("a file that may not grow (report)", "stages.report", nothing, "large|size|disk|quota", "free|limit",
        limits=Limits(file_bytes=4096)),
    bad("more memory than there is", "stages.solve", both(section("solve: {method: d_gating, sparsity: 0.3}"),
        section("methods: {d_gating: {weights: lora, rank: 1000000000, steps: 1}}")), "memory", "chunk|rank|lower",
        limits=Limits(address_bytes=64 << 30)),
    bad("outputs that someone made a link to nowhere", "stages.statistics", (remove("data/activations"),
        lambda folder: (folder / "data/activations").symlink_to("nowhere")), r"data/activations"),
    good("a Prefect server that does not answer", "stages.statistics", nothing,
         environment={"PREFECT_API_URL": "http://127.0.0.1:9/api"}),
    good("a Prefect server whose address is none", "stages.statistics", nothing,
         environment={"PREFECT_API_URL": "prefect"}),
    good("a store that is full", "stages.solve", section("store: {limit_gb: 1.0e-9}")),
]  # fmt: skip
