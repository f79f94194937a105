"""Stages that fail under `dvc repro`, which deletes their outputs before they run: the last ones come back."""

from __future__ import annotations

from tests.bad_input.case import bad, edit

CASES = [
    bad("dvc repro with a sparsity above one", "dvc repro -s solve", edit("0.5", "1.5"),
        r"solve: error: params\.yaml: solve\.sparsity: .*got 1\.5", code=255),
    bad("dvc repro with more sequences than text", "dvc repro -s extract", edit("sequences: 12", "sequences: 1000"),
        r"extract: error: calibration: 1000 sequences of 16 tokens are more than the 800 tokens", code=255),
    bad("dvc repro with a model that is not there", "dvc repro -s fetch", edit("path: source/model", "path: modle"),
        r"fetch: error: fetch\.model\.path: expected a Hugging Face folder or a \.gguf file, got modle", code=255),
]  # fmt: skip
