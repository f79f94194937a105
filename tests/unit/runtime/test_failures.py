"""Any exception ends a stage in one line that names stage, block and file; its traceback is in a log."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from stages import statistics
from stages.artifacts import places
from stages.artifacts.atomic import final_names, replacing_file, replacing_folder
from stages.artifacts.manifest import read_json
from stages.assembly import masked, sliced
from stages.errors import ArtifactError
from stages.params.yamlfile import read_yaml
from stages.runtime import disk, failures
from stages.runtime.blocks.contract import Block, WorkerContext, attempt_at, perform
from stages.runtime.failures import BlockError, describe
from stages.runtime.stage import run_stage
from stages.solving import walk as solving
from stages.sources import model as source
from stages.walk import forward
from tests.helpers.committed import ROOT
from tests.helpers.tiny import write_params

BEFORE = ("extract", "statistics")
FOREIGN = {
    "runtime": RuntimeError("The size of tensor a (4) must match\nthe size of tensor b (5)"),
    "key": KeyError("x"),
    "os": OSError("Couldn't deserialize thrift"),
    "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "arrow": pa.ArrowInvalid("Unexpected end of stream"),
    "zip": zipfile.BadZipFile("File is not a zip file"),
    "recursion": RecursionError("maximum recursion depth exceeded"),
    "exit": SystemExit("a library gave up"),
    "assertion": AssertionError(),
}
NO_MEMORY = {
    "python": MemoryError("Unable to allocate 8.0 GiB for an array"),
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: 12"),
    "c++": RuntimeError("std::bad_alloc"),
    "system": OSError(errno.ENOMEM, "Cannot allocate memory"),
}


def raising(error):
    def body(*args, **kwargs):
        raise error

    return body


def logs():
    return sorted(Path(".cache/logs").glob("*.log"))


@pytest.mark.parametrize("error", FOREIGN.values(), ids=FOREIGN)
def test_an_exception_that_is_not_ours_is_one_line_and_a_log(error, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path)
    assert run_stage("solve", raising(error), ()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"solve: error: {type(error).__name__}")
    (log,) = logs()
    assert line.endswith(f"; the traceback is in {log}")
    assert "Traceback (most recent call last)" in log.read_text()
    assert type(error).__name__ in log.read_text()


@pytest.mark.parametrize("error", NO_MEMORY.values(), ids=NO_MEMORY)
def test_out_of_memory_tells_what_needs_less(error):
    for one in (error, BlockError.of(error, "block 1")):
        assert "out of memory" in describe(one)
        assert "lower compute.chunk or workers.held_gb" in describe(one)


@pytest.mark.parametrize("workers", [{"count": 1}, {"count": 2}], ids=["here", "threads"])
def test_the_block_and_the_file_are_named_and_the_last_outputs_stay(workers, workspace, monkeypatch):
    w = workspace(solve={"inputs": "dense"}, workers=workers)
    w.run(*BEFORE, "solve")
    good, original = w.bytes_of("statistics"), statistics.collect

    def fails_at_the_second(model, index, *args):
        if index == 1:
            raise KeyError("x")
        return original(model, index, *args)

    monkeypatch.setattr(statistics, "collect", fails_at_the_second)
    w.change(statistics={"dtype": "float64"}, workers=workers)
    code, line = w.fail("statistics")
    assert code == 2
    assert line.startswith("statistics: error: block 1: KeyError: 'x' (stages/statistics.py, line ")
    assert "at work on data/activations/block_001.safetensors)" in line
    assert 'raise KeyError("x")' in logs()[0].read_text()
    assert w.bytes_of("statistics") == good
    assert [path.name for path in Path("data").iterdir() if "tmp" in path.name] == []


def test_a_block_in_the_walk_is_named_too(workspace, monkeypatch):
    w = workspace(solve={"method": "wanda"})
    w.run(*BEFORE)
    monkeypatch.setattr(solving, "write_block", raising(torch.OutOfMemoryError("CUDA out of memory.")))
    code, line = w.fail("solve")
    assert code == 2
    assert line.startswith(
        "solve: error: block 0: out of memory (OutOfMemoryError: CUDA out of memory.): lower compute"
    )


def test_a_block_s_error_crosses_processes_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BlockError) as caught:
        perform(Block("solve", 3, "key"), raising(ZeroDivisionError("by 0")))
    told = pickle.loads(pickle.dumps(caught.value))
    assert str(told).startswith("block 3: ZeroDivisionError: by 0 (")
    assert "raise error" in told.trace


def test_a_worker_of_dask_gives_its_error_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = attempt_at(WorkerContext.here(), Block("solve", 3, "key"), raising(ArtifactError("data/x is corrupt")))
    assert isinstance(ended, ArtifactError)
    ended = attempt_at(WorkerContext.here(), Block("evaluate", 3, "key"), raising(ZeroDivisionError("by 0")))
    assert str(ended).startswith("group of windows 3: ZeroDivisionError: by 0 (")


def test_only_the_newest_logs_are_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    failures.LOGS.mkdir(parents=True)
    for age in range(30):
        old = failures.LOGS / f"solve-{age}.log"
        old.write_text("")
        os.utime(old, (1e9 - age, 1e9 - age))
    assert failures.end_failed("solve", KeyError("x")) == 2
    assert len(logs()) == failures.KEPT
    assert failures.LOGS / "solve-0.log" in logs()


def test_a_log_that_cannot_be_written_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".cache").write_text("a file")
    assert failures.end_failed("solve", KeyError("x")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the traceback is in no log, as .cache/logs/solve-" in line


def test_outputs_that_cannot_be_put_back_are_told(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dvc.lock").write_text("schema: '2.0'\nstages:\n  solve:\n    cmd: x\n")
    monkeypatch.setenv("DVC_STAGE", "extract")  # which never ran: nothing to put back
    monkeypatch.setattr(failures.subprocess, "run", lambda *args, **kwargs: pytest.fail("asked dvc"))
    failures.end_failed("extract", KeyError("x"))
    monkeypatch.setenv("DVC_STAGE", "solve")
    ended = subprocess.CompletedProcess([], 1, stderr="ERROR: the cache\nis gone")
    monkeypatch.setattr(failures.subprocess, "run", lambda *args, **kwargs: ended)
    with caplog.at_level(logging.INFO, "secateur"):
        failures.end_failed("solve", KeyError("x"))
    assert caplog.messages == [
        "the outputs of the last successful run could not be put back (ERROR: the cache is gone): run dvc checkout"
    ]


@pytest.mark.parametrize("command", [["--list"], []], ids=["its arguments", "its work"])
def test_a_package_that_is_missing_is_one_line(command, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    ended = subprocess.run(
        [sys.executable, "-m", "stages.solve", *command], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("solve: error: ImportError: libcudart.so.12: cannot open shared object file")
    assert (tmp_path / line.rpartition("the traceback is in ")[2]).is_file()


@pytest.mark.parametrize(
    ("temporary", "final"),
    [
        ("data/.model.tmp/model.safetensors is corrupt", "data/model/model.safetensors is corrupt"),
        ("'/x/.cache/blocks/solve/.ab12.safetensors.4711.tmp'", "'/x/.cache/blocks/solve/ab12.safetensors'"),
        (".params.yaml.12.tmp: no", "params.yaml: no"),
        (".cache/wheels/.smol-1.whl.ab_d12ef.tmp/x", ".cache/wheels/smol-1.whl/x"),
        ("data/model.tmp and .tmp stay", "data/model.tmp and .tmp stay"),
    ],
)
def test_a_message_names_the_final_place(temporary, final):
    assert final_names(temporary) == final


@pytest.mark.parametrize("replacing", [replacing_file, replacing_folder])
def test_what_is_written_is_what_final_names_knows(replacing, tmp_path):
    context = replacing(tmp_path / "a.json")
    temporary = context.__enter__()
    assert temporary.name != "a.json"
    assert final_names(str(temporary)) == str(tmp_path / "a.json")


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    path, rename = tmp_path / "out", Path.rename
    with replacing_folder(path) as temporary:
        (temporary / "a").write_text("old")

    def stop_at_the_second(self, target):
        if self.name == ".out.tmp":
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stop_at_the_second)
        with pytest.raises(KeyboardInterrupt), replacing_folder(path) as temporary:
            (temporary / "a").write_text("new")
    assert (path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["out"]


def test_the_old_folder_of_a_run_that_was_killed_comes_back(tmp_path):
    (tmp_path / ".out.old").mkdir()
    (tmp_path / ".out.old/a").write_text("old")
    with pytest.raises(KeyError), replacing_folder(tmp_path / "out"):
        raise KeyError
    assert (tmp_path / "out/a").read_text() == "old"


def test_a_full_disk_names_the_file_and_its_own_disk(tmp_path, monkeypatch):
    told, usage = [], shutil._ntuple_diskusage(0, 0, 25e7)
    monkeypatch.setattr(failures.shutil, "disk_usage", lambda path: told.append(path) or usage)
    with pytest.raises(OSError, match="No space") as caught, replacing_file(tmp_path / "absent/t.bin"):
        Path("/dev/full").write_bytes(b"x")
    assert describe(caught.value) == (
        f"the disk is full: {tmp_path}/absent/t.bin could not be written (0.25 GB free in {tmp_path}/absent): free "
        "some there (`make clean-store` forgets the finished blocks in .cache/blocks), then run again"
    )
    assert told == [tmp_path / "absent"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_is_named(number, tmp_path):
    error = OSError(number, os.strerror(number), str(tmp_path / ".model.tmp"))
    line = describe(error)
    assert "cannot be written, " in line
    assert f"expected a folder to write to, got {tmp_path}" in line


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("metrics/dense.json", "metrics/dense.json is corrupt"),
        ("data/texts/manifest.json", "data/texts/manifest.json is corrupt"),
    ],
)
@pytest.mark.parametrize("text", ["{", "[1]", "\udcff"], ids=["cut", "list", "bytes"])
def test_a_corrupt_file_s_advice_is_of_its_own_output(path, told, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(path).parent.mkdir(parents=True)
    Path(path).write_bytes(text.encode(errors="surrogateescape"))
    output, stage = {"metrics/dense.json": ("metrics/dense.json", "evaluate_dense")}.get(path, ("data/texts", "fetch"))
    with pytest.raises(ArtifactError, match=told) as caught:
        read_json(Path(path))
    assert f"`dvc checkout --force {output}` takes" in str(caught.value)
    assert f"`dvc repro -f -s {stage}` makes it again" in str(caught.value)
    Path(path).unlink()
    with pytest.raises(ArtifactError, match=f"is missing: run the stage that writes it: `dvc repro {stage}`"):
        read_json(Path(path))


def test_every_output_of_the_graph_has_its_stage():
    stages = read_yaml(ROOT / "dvc.yaml")["stages"]
    written = {Path(path): name for name, one in stages.items() for path in one["outs"] + one.get("metrics", [])}
    assert written == places.WRITERS


def test_the_room_that_is_asked_for_is_that_of_what_is_missing(workspace, monkeypatch):
    w = workspace()
    asked = []
    monkeypatch.setattr(disk, "need_disk", lambda place, needed, what, advice: asked.append((place, needed)))
    w.run("extract")
    block = 6 * 16 * 32 * 4
    assert asked == [(Path(".cache/blocks"), 3 * block)]
    w.change(calibration={"seed": 1})
    with monkeypatch.context() as patch:
        patch.setattr(forward, "advance", raising(KeyError("x")))
        w.fail("extract")
    asked.clear()
    w.run("extract")  # the first block's are in the store
    assert asked == [(Path(".cache/blocks"), 2 * block)]
    asked.clear()
    w.change()
    monkeypatch.setattr(disk, "nearest_existing", lambda path: Path("/proc" if path == Path("data") else "."))
    w.run("extract")
    assert asked == [(Path(".cache/blocks"), 3 * block), (Path("data"), 3 * block)]
    w.change(extract={"format": "parquet", "dtype": "bfloat16"})
    w.run("extract")
    assert asked[-1] == (Path("data"), 3 * block)  # Parquet holds bfloat16 as float32


@pytest.mark.parametrize(
    ("stage", "advice"),
    [("extract", "use fewer or shorter sequences (calibration.sequences, "), ("assemble", "data on another disk")],
)
def test_too_small_a_disk_is_told_with_what_helps_there(stage, advice, workspace, monkeypatch):
    w = workspace()
    if stage == "assemble":
        w.run(*BEFORE, "solve")
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    code, line = w.fail(stage)
    assert (code, advice in line) == (2, True), line


def test_bars_of_what_is_written_end_at_all_of_it(workspace, monkeypatch):
    ends = []

    class Bar:
        def __init__(self, total):
            self.total, self.n = total, 0

        def update(self, count):
            self.n += count

        def __enter__(self):
            return self

        def __exit__(self, *error):
            ends.append((self.n, self.total))

    def bar(things=None, **options):
        return Bar(options["total"])

    for module in (masked, sliced, source):
        monkeypatch.setattr(module, "progress", bar)
    w = workspace(solve={"method": "wanda"})
    w.run(*BEFORE, "solve", "assemble")
    w.change(solve={"method": "wanda_units", "sparsity": 0.3})
    w.run("solve", "assemble")
    w.change(solve={"method": "slicegpt", "sparsity": 0.2})
    w.run("solve", "assemble")
    for number, dtype in enumerate((None, torch.bfloat16)):
        (target := w.folder / f"copy{number}").mkdir()
        source._write_folder(w.folder / "data/model", target, dtype, False)
    assert [done - total for done, total in ends] == [0, 0, 0, 0, 0]
