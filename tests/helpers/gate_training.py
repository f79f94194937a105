"""Settings of short trainings of gates on tiny models."""

from __future__ import annotations

from pathlib import Path

MODEL, SOLUTION = Path("data/model"), Path("data/solution")
QUICK = {"steps": 6, "learning_rate": 0.1, "penalty": 40.0}


def gate_settings(weights="frozen", sparsity=0.3, settings=None, **solve):
    """Sections of params.yaml for a training with these settings; `solve` are of that section."""
    rate = {} if weights == "frozen" else {"weight_rate": 1e-3}
    return {
        "solve": {"method": "d_gating", "sparsity": sparsity, "inputs": "dense", **solve},
        "methods": {"d_gating": {**QUICK, "weights": weights, **rate, **(settings or {})}},
    }
