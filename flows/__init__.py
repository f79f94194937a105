"""Orchestration: the graph of dvc.yaml as Prefect flows. Knows neither torch nor the stages; runs dvc."""

import os

for _name in ("PREFECT_SERVER_ANALYTICS_ENABLED", "DO_NOT_TRACK", "DVC_NO_ANALYTICS"):
    os.environ.setdefault(_name, "false" if _name.startswith("PREFECT") else "1")
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
