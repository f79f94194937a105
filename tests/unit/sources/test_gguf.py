"""A GGUF file becomes plain weights in the asked dtype, and a tokenizer."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.artifacts.manifest import sha256_of
from stages.artifacts.tensorfile import read_tensors
from stages.errors import SourceError
from stages.params.fetching import LocalModel, WheelModel
from stages.sources import wheels
from stages.sources.model import write_model

VOCABULARY, WIDTH, MLP, HEADS = 96, 64, 96, 4
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
WORDS = [*LETTERS, "Ġ", "Ġt", "<end>"]
PACKED = gguf.GGMLQuantizationType.Q8_0


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    return tmp_path / "source", tmp_path / "target"


def local(path):
    return LocalModel(source="local", path=path)


def wheel_of(file, dtype):
    """A wheel in the cache that holds `file`, as a model source."""
    path = wheels.FOLDER / "models-1-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(file, f"inside/{file.name}")
    facts = {"package": "models==1", "sha256": sha256_of(path), "member": f"inside/{file.name}"}
    return WheelModel(source="wheel", dtype=dtype, **facts)


def add_facts(writer):
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    end = len(WORDS) - 1
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS + [f"unused{i}" for i in range(VOCABULARY - len(WORDS))])
    writer.add_token_types([3 if i == end else 1 for i in range(VOCABULARY)])
    writer.add_token_merges(["Ġ t"])
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)


def shapes():
    yield "token_embd", (VOCABULARY, WIDTH)
    yield "output_norm", (WIDTH,)
    for block in ("blk.0.", "blk.1."):
        yield from ((block + name, (WIDTH, WIDTH)) for name in ("attn_q", "attn_output"))
        yield from ((block + name, (WIDTH // 2, WIDTH)) for name in ("attn_k", "attn_v"))
        yield from ((block + name, (MLP, WIDTH)) for name in ("ffn_gate", "ffn_up"))
        yield block + "ffn_down", (WIDTH, MLP)
        yield from ((block + name, (WIDTH,)) for name in ("attn_norm", "ffn_norm"))


def write_gguf(path: Path, lost: str | None = None) -> np.ndarray:
    """A Llama of two blocks in Q8_0, with a tokenizer of letters; gives its embeddings as they dequantise."""
    writer, random, packed = gguf.GGUFWriter(str(path), "llama"), np.random.default_rng(0), {}
    add_facts(writer)
    for name, shape in shapes():
        values = random.standard_normal(shape).astype(np.float32)
        if name == lost:
            continue
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values)
        else:
            packed[name] = gguf.quants.quantize(values, PACKED)
            writer.add_tensor(f"{name}.weight", packed[name], raw_dtype=PACKED)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf.quants.dequantize(packed["token_embd"], PACKED)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_a_gguf_file_becomes_plain_weights_and_a_tokenizer(dtype, folders):
    source, target = folders
    embeddings = torch.from_numpy(write_gguf(source / "tiny.gguf"))
    facts = write_model(wheel_of(source / "tiny.gguf", dtype), target)
    expected = torch.float32 if dtype == "auto" else torch.bfloat16
    assert facts["dtype"] == str(expected).removeprefix("torch.")
    assert {tensor.dtype for tensor in read_tensors(target / "model.safetensors").values()} == {expected}
    assert "quantization_config" not in json.loads((target / "config.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(target)
    assert torch.equal(model.get_input_embeddings().weight, embeddings.to(expected))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert AutoTokenizer.from_pretrained(target)("a test").input_ids == [0, 27, 4, 18, 19]
    assert write_model(local(source / "tiny.gguf"), target)["sha256"] == sha256_of(source / "tiny.gguf")


def test_a_gguf_file_that_cannot_be_used_is_refused(folders):
    source, target = folders
    write_gguf(source / "part.gguf", lost="blk.1.ffn_down")
    with pytest.raises(SourceError, match=r"part\.gguf has no tensor for model\.layers\.1\.mlp\.down_proj\.weight"):
        write_model(local(source / "part.gguf"), target)
    (source / "bad.gguf").write_bytes(b"nothing of the kind")
    with pytest.raises(SourceError, match=r"bad\.gguf cannot be dequantised"):
        write_model(local(source / "bad.gguf"), target)
    with pytest.raises(SourceError, match=r"expected a Hugging Face folder or a \.gguf file"):
        write_model(local(source / "none.gguf"), target)


@pytest.mark.parametrize("share", [0.001, 0.02, 0.1, 0.5, 0.99])
def test_a_gguf_file_that_ends_early_is_refused(share, folders):
    source, target = folders
    write_gguf(source / "cut.gguf")
    data = (source / "cut.gguf").read_bytes()
    (source / "cut.gguf").write_bytes(data[: int(share * len(data))])
    with pytest.raises(
        SourceError, match=r"fetch\.model: cut\.gguf cannot be dequantised \(.+\): use a GGUF"
    ) as raised:
        write_model(local(source / "cut.gguf"), target)
    assert "\n" not in str(raised.value)
