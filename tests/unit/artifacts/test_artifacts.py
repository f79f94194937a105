"""Files on disk: whole or not there, checked when read."""

from __future__ import annotations

import os

import pytest
import torch
from safetensors.torch import load_file

from stages.artifacts import store
from stages.artifacts.activations import read_states, states_shape, writer_of
from stages.artifacts.atomic import replacing_file, replacing_folder
from stages.artifacts.manifest import identity_of, read_manifest, verified, write_manifest
from stages.artifacts.store import BlockStore
from stages.artifacts.tensorfile import TensorFile, TensorWriter, read_tensors, write_tensors
from stages.artifacts.tokens import sample_windows
from stages.errors import ArtifactError, ParameterError


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), replacing_file(path) as temporary:
        (temporary.parent / "absent" / "a").write_text("ne")
    assert path.read_text() == "old"
    with replacing_file(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "out"
    for text, fails in (("old", False), ("new", True), ("newer", False)):
        try:
            with replacing_folder(path) as temporary:
                (temporary / "a").write_text(text)
                if fails:
                    raise RuntimeError
        except RuntimeError:
            pass
        assert (path / "a").read_text() == ("old" if fails else text)
    assert os.listdir(tmp_path) == ["out"]


def test_leftovers_of_a_killed_run_are_removed(tmp_path):
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp" / "part").write_text("half")
    with replacing_folder(tmp_path / "out") as temporary:
        (temporary / "a").write_text("whole")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a"]
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64])
def test_tensors_written_in_pieces_are_what_the_library_reads(tmp_path, dtype):
    tensor, empty = torch.arange(12).reshape(4, 3).to(dtype), torch.zeros(0, dtype=dtype)
    layout = {"empty": (dtype, (0,)), "rows": (dtype, (4, 3)), "scalar": (dtype, ())}
    with TensorWriter(tmp_path / "t.safetensors", layout, {"who": "me"}) as writer:
        writer.write("rows", tensor[:1])
        writer.write("rows", tensor[1:])
        writer.write("scalar", tensor[0, 0])
    found = load_file(tmp_path / "t.safetensors")
    assert torch.equal(found["rows"], tensor)
    assert torch.equal(found["empty"], empty)
    assert found["scalar"].shape == ()
    file = TensorFile(tmp_path / "t.safetensors")
    assert file.metadata == {"who": "me"}
    assert torch.equal(file.read(["rows"])["rows"], tensor)
    assert torch.equal(file.read_rows("rows", 1, 3), tensor[1:3])
    assert file.read(["empty", "scalar"])["empty"].numel() == 0


def test_a_tensor_that_does_not_fit_its_layout_is_refused(tmp_path):
    layout = {"a": (torch.float32, (2, 2))}
    with pytest.raises(ValueError, match="expected 16 bytes of a"), TensorWriter(tmp_path / "t", layout) as writer:
        writer.write("a", torch.zeros(3, 2))
    with pytest.raises(ValueError, match="not written whole: a"), TensorWriter(tmp_path / "t", layout) as writer:
        writer.write("a", torch.zeros(1, 2))


@pytest.mark.parametrize("file_format", ["safetensors", "parquet"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_hidden_states_come_back_to_the_bit(tmp_path, file_format, dtype):
    states, path = torch.randn(5, 6, 8).to(dtype), tmp_path / f"s.{file_format}"
    with writer_of(path, file_format, (5, 6, 8), dtype) as writer:
        writer.append(states[:3])
        writer.append(states[3:])
    chunks = list(read_states(path, 2))
    assert [len(chunk) for chunk in chunks] == [2, 2, 1]
    assert torch.equal(torch.cat(chunks), states)
    assert states_shape(path) == (5, 6, 8)


def test_a_manifest_tells_a_changed_byte(tmp_path):
    (tmp_path / "a").write_text("one")
    write_manifest(tmp_path, {"made": "from nothing"})
    before = identity_of(tmp_path)
    manifest = read_manifest(tmp_path)
    assert verified(tmp_path, "a", manifest).read_text() == "one"
    (tmp_path / "a").write_text("two")
    with pytest.raises(ArtifactError, match="a is corrupt"):
        verified(tmp_path, "a", manifest)
    write_manifest(tmp_path, {"made": "from nothing"})
    assert identity_of(tmp_path) != before


def test_a_missing_or_corrupt_manifest_is_told(tmp_path):
    with pytest.raises(ArtifactError, match="run the stage that writes"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ArtifactError, match="is corrupt"):
        read_manifest(tmp_path)


def test_a_file_that_is_no_safetensors_is_told(tmp_path):
    path = tmp_path / "t.safetensors"
    write(path)
    whole = path.read_bytes()
    for data in (b"", b"12345678nonsense", whole[:-4], whole[:8] + b"{}" + whole[10:], whole[: len(whole) // 100]):
        path.write_bytes(data)
        with pytest.raises(ArtifactError, match="no readable safetensors"):
            read_tensors(path)


def write(path, value=1.0):
    write_tensors(path, {"a": torch.full((1000,), value)})


def test_the_store_gives_what_was_made_and_nothing_that_is_corrupt(tmp_path):
    blocks = BlockStore("task", tmp_path)
    assert blocks.find("key") is None
    path = blocks.get("key", write)
    assert blocks.get("key", lambda path: pytest.fail("made again")) == path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert blocks.find("key") is None
    assert blocks.find(blocks.get("key", write).stem) is not None


def test_a_block_that_fails_leaves_nothing(tmp_path):
    blocks = BlockStore("task", tmp_path)

    def fail(path):
        path.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        blocks.get("key", fail)
    assert os.listdir(tmp_path / "task") == []


def test_the_blocks_used_longest_ago_are_dropped_first(tmp_path):
    blocks = BlockStore("task", tmp_path)
    for age, key in enumerate(["new", "old", "older"]):
        path = blocks.get(key, write)
        os.utime(path.with_suffix(".sha256"), (1e9 - age, 1e9 - age))
    size = path.stat().st_size
    assert store.trim(2 * size, tmp_path) == size
    assert [blocks.find(key) is not None for key in ("new", "old", "older")] == [True, True, False]
    assert store.trim(10 * size, tmp_path) == 0


def test_keys_differ_when_a_fact_does():
    assert store.key_of(a=1, b=2) == store.key_of(b=2, a=1)
    assert store.key_of(a=1) != store.key_of(a=2)


def test_windows_are_those_of_the_named_generator():
    import random

    tokens, draw = torch.arange(100), random.Random(3)
    windows = sample_windows(tokens, 4, 10, 3)
    assert windows[:, 0].tolist() == [draw.randint(0, 89) for _ in range(4)]
    assert windows.shape == (4, 10)
    with pytest.raises(ParameterError, match="are more than the 100 tokens"):
        sample_windows(tokens, 11, 10, 0)


def test_windows_of_sequences_are_their_first_tokens_each_drawn_once():
    import random

    tokens, text = torch.arange(5 * 17), {"sequence": 17}
    windows = sample_windows(tokens, 4, 10, 3, text)
    assert windows[:, 0].tolist() == [17 * index for index in random.Random(3).sample(range(5), 4)]
    assert torch.equal(windows - windows[:, :1], torch.arange(10).expand(4, 10))
    assert torch.equal(sample_windows(tokens, 5, 17, 0, text).sort(0).values, tokens.view(5, 17))
    with pytest.raises(ParameterError, match="6 sequences are more than the 5 of the calibration images"):
        sample_windows(tokens, 6, 10, 0, text)
    with pytest.raises(ParameterError, match="at most 17 tokens, the sequence of an image, got 18"):
        sample_windows(tokens, 2, 18, 0, text)


@pytest.mark.parametrize("count", [7, 8])
def test_both_halves_of_an_image_are_drawn_one_after_the_other(count):
    tokens = torch.arange(20 * 5)
    places = (sample_windows(tokens, count, 5, 1, {"sequence": 5, "halves": 2})[:, 0] // 5).tolist()
    assert len(set(places)) == count
    assert [place % 2 for place in places] == [0, 1, 0, 1, 0, 1, 0, 1][:count]
    assert all(first + 1 == second for first, second in zip(places[::2], places[1::2], strict=False))
