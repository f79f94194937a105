"""Block work on threads, on Dask and as Prefect tasks gives the bytes it gives here; what dies costs what it held."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stages.artifacts.manifest import read_manifest, sha256_of, write_manifest
from stages.artifacts.tensorfile import read_tensors, write_tensors
from tests.helpers.committed import ROOT
from tests.helpers.forks.start import forked as with_forks
from tests.helpers.tiny import VOCABULARY, save_tokens, write_params
from tests.helpers.waiting import wait_for

BLOCKS = 8
DASK = {"runner": "dask", "count": 2}


class Folder:
    """A workspace with a model whose blocks take about a third of a second each."""

    def __init__(self, folder, server, forks):
        self.folder = folder
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=256, intermediate_size=1024, num_hidden_layers=BLOCKS,
            num_attention_heads=4, num_key_value_heads=2, dtype="float32",
        )  # fmt: skip
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder / "data/model")
        write_manifest(folder / "data/model", {"source": {}})
        save_tokens(folder / "data/texts")
        self.change()
        self.server = {**server, "OMP_NUM_THREADS": "1"}
        self.plain = {key: value for key, value in self.server.items() if key != "PREFECT_API_URL"}
        self.forks = forks

    def change(self, inputs="dense", **workers):
        write_params(self.folder, solve={"method": "sparsegpt", "inputs": inputs}, workers=workers)

    def start(self, stage, environment, *arguments, forked=False):
        return subprocess.Popen(
            ["python", "-m", f"stages.{stage}", *arguments],
            cwd=self.folder, env=with_forks(self.forks, environment) if forked else environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, stage, environment=None):
        """Run a stage; gives how many blocks it made."""
        process = self.start(stage, environment or self.plain, forked=True)
        output = process.communicate(timeout=180)[0]
        assert process.returncode == 0, output[-4000:]
        assert not any(noise in output for noise in ("distributed", "tcp://", "Traceback", "CommClosed")), output[
            -4000:
        ]
        return json.loads((self.folder / f"metrics/cost/{stage}.json").read_text())["blocks_made"]

    def bytes_of(self, output):
        return {path.name: sha256_of(path) for path in sorted((self.folder / "data" / output).iterdir())}

    def seals(self, task):
        return list((self.folder / ".cache/blocks" / task).glob("*.sha256"))

    def forget(self):
        for path in self.folder.glob(".cache/blocks/*/*"):
            path.unlink()


@pytest.fixture(scope="module")
def solved(tmp_path_factory, server, forks):
    """The workspace, and the bytes that the plain stages gave."""
    place = Folder(tmp_path_factory.mktemp("blocks"), server, forks)
    for stage in ("extract", "statistics", "solve"):
        assert place.run(stage) == BLOCKS
    return place, {name: place.bytes_of(name) for name in ("statistics", "solution")}


@pytest.fixture
def place(solved):
    place, _ = solved
    place.change()
    place.forget()
    return place


def same_bytes(solved):
    place, expected = solved
    return {name: place.bytes_of(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("workers", "stages"), [({"count": 2}, ("statistics", "solve")), (DASK, ("statistics",))], ids=str
)
def test_workers_give_the_same_bytes(place, solved, workers, stages):
    """Solve on Dask, with and without a server, is in the tests below."""
    place.change(**workers)
    for stage in stages:
        assert place.run(stage) == BLOCKS
    assert same_bytes(solved)


def spawned(process):
    """Processes of the local cluster's workers."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


@pytest.mark.parametrize("on_server", [False, True])
def test_a_dask_worker_that_is_killed_loses_only_the_block_it_held(place, solved, on_server):
    place.change(**DASK)
    process = place.start("solve", place.server if on_server else place.plain)
    wait_for(lambda: len(place.seals("solve")) >= 3, 120)
    assert len(place.seals("solve")) < BLOCKS
    spawned(process)[0].send_signal(signal.SIGKILL)
    output = process.communicate(timeout=180)[0]
    assert process.returncode == 0, output[-4000:]
    assert same_bytes(solved)
    cost = json.loads((place.folder / "metrics/cost/solve.json").read_text())
    assert cost["blocks_made"] + cost["blocks_restored"] == BLOCKS
    assert place.run("solve") == 0


@pytest.mark.parametrize("inputs", ["dense", "pruned"])
def test_prefect_shows_every_block_and_repeats_only_what_is_missing_or_corrupt(place, solved, inputs):
    place.change(inputs)
    assert place.run("solve", place.server) == BLOCKS
    first = place.bytes_of("solution")
    assert place.run("solve", place.server) == 0
    missing, corrupt = sorted((place.folder / ".cache/blocks/solve").glob("*.safetensors"))[:2]
    missing.unlink()
    corrupt.write_bytes(corrupt.read_bytes()[:-1] + b"?")
    assert place.run("solve", place.server) == 2
    assert place.bytes_of("solution") == first
    assert place.run("solve") == 0  # without the server: the same store


def test_a_block_that_fails_is_one_line_where_prefect_runs_it(place):
    path = place.folder / "data/statistics/block_001.safetensors"
    good, manifest = path.read_bytes(), read_manifest(path.parent)
    try:
        path.unlink()
        write_tensors(path, read_tensors(path.with_name("block_000.safetensors")))  # without what they are called
        write_manifest(path.parent, {name: value for name, value in manifest.items() if name != "files"})
        process = place.start("solve", place.server, forked=True)
        lines = process.communicate(timeout=120)[0].splitlines()
    finally:
        path.write_bytes(good)
        write_manifest(path.parent, {name: value for name, value in manifest.items() if name != "files"})
    assert process.returncode == 2
    assert lines[-1].startswith("solve: error: block 1: KeyError: 'groups' (stages/walk/statistics.py, line ")
    assert not any("Traceback" in line for line in lines)


def test_a_killed_evaluation_goes_on_from_its_windows(place):
    process = place.start("evaluate", place.server, "dense")
    wait_for(lambda: place.seals("evaluate"), 60)
    process.kill()
    process.wait()
    finished = len(place.seals("evaluate"))
    process = place.start("evaluate", place.plain, "dense", forked=True)
    assert process.wait(120) == 0
    cost = json.loads((place.folder / "metrics/cost/evaluate_dense.json").read_text())
    assert (cost["blocks_restored"], cost["blocks_made"]) == (finished, -(-18 // 8) - finished)


def test_a_cluster_or_a_server_that_does_not_answer(place):
    place.change(runner="dask", address="tcp://127.0.0.1:9")
    process = place.start("solve", place.plain, forked=True)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 2
    assert "solve: error: workers.address: no Dask scheduler answers at tcp://127.0.0.1:9" in output
    place.change()
    unreachable = place.plain | {"PREFECT_API_URL": "http://127.0.0.1:9/api"}
    process = place.start("solve", unreachable, forked=True)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0
    assert "does not answer" in output


def test_a_cluster_that_is_there_is_used(place, solved):
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--no-show"]
    file = place.folder / "scheduler.json"
    started = [
        subprocess.Popen([*command, "--scheduler-file", str(file)], cwd=place.folder, env=place.plain),
    ]
    wait_for(file.exists, 60)
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file), "--no-dashboard"]
    started.append(subprocess.Popen([*worker, "--nthreads", "1"], cwd=ROOT, env=place.plain))
    try:
        place.change(runner="dask", address=json.loads(file.read_text())["address"])
        assert place.run("solve") == BLOCKS
        assert same_bytes(solved)
    finally:
        for process in started:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(30)
