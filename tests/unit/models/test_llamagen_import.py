"""Conversion of LlamaGen's `.pt` files: tensor by tensor, whole or not at all, without running their code."""

from __future__ import annotations

import errno
import os
import re
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from stages.artifacts.tensorfile import read_tensors
from stages.models.importing import llamagen_tokenizer
from stages.models.importing.llamagen import main
from stages.models.importing.llamagen_transformer import HEADS as PUBLISHED
from stages.models.importing.llamagen_transformer import PublicTransformer
from stages.models.importing.normalise import survey
from stages.models.loading.load import load_model
from tests.helpers.llamagen import (
    CLASSES,
    CODES,
    GRID,
    HEADS,
    LAYERS,
    SIDE,
    WIDTH,
    converted,
    public_tokenizer,
    public_transformer,
    save_public,
)
from tests.reference.llamagen import swiglu_width

SIZE = WIDTH // HEADS


@pytest.fixture
def convert(tmp_path, capsys):
    """Run the command on files of the given contents: exit code, what it printed, its error lines, its folder."""

    def run(transformer=None, tokenizer=None, *options: str):
        save_public(tmp_path)
        for name, content in (("c2i.pt", transformer), ("vq.pt", tokenizer)):
            if content is not None:
                torch.save(content, tmp_path / name)
        return command(tmp_path, capsys, *options)

    return run


def command(folder: Path, capsys, *options: str):
    files = [str(folder / name) for name in ("c2i.pt", "vq.pt", "out")]
    sizes = {"--image-size": str(SIDE), "--heads": str(HEADS), "--classes": str(CLASSES)}
    sizes |= dict(zip(options[::2], options[1::2], strict=True))
    code = main([*files, *(word for pair in sizes.items() for word in pair)])
    told = capsys.readouterr()
    return code, told.out, told.err.splitlines(), folder / "out"


@pytest.mark.parametrize("key_value_heads", [HEADS, 2, 1])
def test_every_tensor_is_where_transformers_looks_for_it(tmp_path, key_value_heads):
    public = public_transformer(key_value_heads)
    folder = converted(tmp_path, public)
    ours = read_tensors(folder / "model.safetensors")
    assert torch.equal(ours.pop("model.embed_tokens.weight")[:CODES], public["tok_embeddings.weight"])
    whole = read_tensors(folder / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(whole[CODES:], public["cls_embedding.embedding_table.weight"])
    assert torch.equal(ours.pop("model.norm.weight"), public["norm.weight"])
    assert torch.equal(ours.pop("lm_head.weight"), public["output.weight"])
    for layer in range(LAYERS):
        at, fused = f"model.layers.{layer}.", public[f"layers.{layer}.attention.wqkv.weight"]
        rows = {"q": 0, "k": WIDTH, "v": WIDTH + key_value_heads * SIZE}
        for head in range(HEADS):
            for pair in range(SIZE // 2):
                for part in ("q", "k"):
                    if part == "q" or head < key_value_heads:
                        found = ours[f"{at}self_attn.{part}_proj.weight"]
                        first, second = head * SIZE + pair, head * SIZE + SIZE // 2 + pair
                        assert torch.equal(found[first], fused[rows[part] + head * SIZE + 2 * pair])
                        assert torch.equal(found[second], fused[rows[part] + head * SIZE + 2 * pair + 1])
        assert torch.equal(ours[f"{at}self_attn.v_proj.weight"], fused[rows["v"] :])
        assert [len(ours.pop(f"{at}self_attn.{part}_proj.weight")) for part in "qkv"] == [
            WIDTH, key_value_heads * SIZE, key_value_heads * SIZE,
        ]  # fmt: skip
        for name, old in {
            "self_attn.o_proj": "attention.wo",
            "mlp.gate_proj": "feed_forward.w1",
            "mlp.up_proj": "feed_forward.w3",
            "mlp.down_proj": "feed_forward.w2",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "ffn_norm",
        }.items():
            assert torch.equal(ours.pop(f"{at}{name}.weight"), public[f"layers.{layer}.{old}.weight"])
    assert not ours


def test_every_tensor_of_the_image_tokenizer_is_there_and_only_the_codebook_is_normalised(tmp_path):
    public = public_tokenizer()
    ours = read_tensors(converted(tmp_path, tokenizer=public) / "image_tokenizer/model.safetensors")
    codebook = ours.pop("quantize.embedding.weight")
    torch.testing.assert_close(codebook.norm(dim=1), torch.ones(CODES))
    torch.testing.assert_close(codebook, torch.nn.functional.normalize(public["quantize.embedding.weight"], dim=1))
    for name, old in {
        "encoder.down.1.block.0.nin_shortcut.weight": "encoder.conv_blocks.1.res.0.nin_shortcut.weight",
        "encoder.down.0.downsample.conv.bias": "encoder.conv_blocks.0.downsample.conv.bias",
        "decoder.up.0.attn.2.q.bias": "decoder.conv_blocks.0.attn.2.q.bias",
        "decoder.mid.attn_1.proj_out.weight": "decoder.mid.1.proj_out.weight",
        "encoder.mid.block_2.norm1.bias": "encoder.mid.2.norm1.bias",
        "post_quant_conv.weight": "post_quant_conv.weight",
    }.items():
        assert torch.equal(ours[name], public[old])
    left = [tensor.numpy().tobytes() for name, tensor in public.items() if not name.startswith("quantize.")]
    assert sorted(tensor.numpy().tobytes() for tensor in ours.values()) == sorted(left)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_keep_their_dtype(tmp_path, dtype):
    folder = converted(tmp_path, public_transformer(dtype=dtype), public_tokenizer(dtype=dtype))
    for name in ("model.safetensors", "image_tokenizer/model.safetensors"):
        assert {tensor.dtype for tensor in read_tensors(folder / name).values()} == {dtype}
    assert load_model(folder, device="cpu").dtype is dtype


def test_fetch_finds_a_model_with_all_its_tensors(tmp_path):
    found = survey(converted(tmp_path), trust_remote_code=False)
    assert (found.architecture, found.unstored) == ("LlamaGenForImageGeneration", ())
    assert (found.vocabulary, found.positions) == (CODES + CLASSES + 1, 1 + GRID**2)


def test_the_folder_has_all_that_a_model_needs_elsewhere(tmp_path):
    folder = converted(tmp_path)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {
        "config.json", "generation_config.json", "model.safetensors", "modeling_llamagen.py", "modeling_hetero.py",
        "image_tokenizer/config.json", "image_tokenizer/model.safetensors",
    }  # fmt: skip


@pytest.mark.parametrize("key", ["model", "module", "state_dict", None])
def test_the_state_dict_is_found_where_training_scripts_put_it(convert, key):
    state, tokenizer = public_transformer(), public_tokenizer()
    around = {"optimizer": {"state": {0: torch.ones(2)}}, "steps": 7, "args": Namespace(lr=1e-4)}
    code, out, err, folder = convert(
        {key: state, **around} if key else state,
        {"state_dict" if key == "module" else key: tokenizer, **around} if key else tokenizer,
    )
    assert (code, err) == (0, [])
    assert str(folder) in out
    assert torch.equal(read_tensors(folder / "model.safetensors")["lm_head.weight"], state["output.weight"])


def test_averaged_weights_of_the_tokenizer_are_taken(convert):
    averaged = public_tokenizer(seed=1)
    _, out, _, folder = convert(None, {"model": public_tokenizer(), "ema": averaged})
    found = read_tensors(folder / "image_tokenizer/model.safetensors")["quant_conv.weight"]
    assert torch.equal(found, averaged["quant_conv.weight"])
    assert "(ema)" in out


def test_files_that_old_versions_of_torch_wrote_are_read(tmp_path, capsys):
    for path, state in zip(save_public(tmp_path), (public_transformer(), public_tokenizer()), strict=True):
        torch.save(state, path, _use_new_zipfile_serialization=False)
    assert command(tmp_path, capsys)[0] == 0


@pytest.mark.parametrize(("layers", "width"), sorted(PUBLISHED))
def test_published_sizes_are_known(tmp_path, layers, width):
    channels = swiglu_width(width)
    shapes = {"tok_embeddings": (16384, width), "cls_embedding.embedding_table": (1001, width)}
    for layer in range(layers):
        parts = {
            "attention.wqkv": (3 * width, width), "attention.wo": (width, width), "feed_forward.w1": (channels, width),
            "feed_forward.w3": (channels, width), "feed_forward.w2": (width, channels), "attention_norm": (width,),
            "ffn_norm": (width,),
        }  # fmt: skip
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in parts.items()}
    shapes |= {"norm": (width,), "output": (16384, width)}
    one = torch.zeros(())  # of which every tensor is a view, so that the file is small
    torch.save({f"{name}.weight": one.expand(shape) for name, shape in shapes.items()}, tmp_path / "c2i.pt")
    found = PublicTransformer.read(tmp_path / "c2i.pt", None, 1000)
    assert (found.heads, found.key_value_heads) == (PUBLISHED[layers, width],) * 2
    assert (found.channels, found.config(24).head_dim) == (channels, width // PUBLISHED[layers, width])
    assert found.config(24).codes == 576


class Code:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)

    def __reduce__(self):
        return os.mkdir, (self.place,)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["c2i.pt", "vq.pt"])
def test_code_in_a_file_is_refused_and_never_run(tmp_path, capsys, name, zipped):
    save_public(tmp_path)
    content = {"model": public_transformer(), "evil": Code(tmp_path / "ran")}
    torch.save(content, tmp_path / name, _use_new_zipfile_serialization=zipped)
    code, out, err, folder = command(tmp_path, capsys)
    assert (code, out, len(err)) == (2, "", 1)
    assert f"{name} holds " in err[0]
    assert "mkdir, whose code is never run" in err[0]
    assert not (tmp_path / "ran").exists()
    assert not folder.exists()
    torch.load(tmp_path / name, weights_only=False)
    assert (tmp_path / "ran").exists(), "its code does run where it may"


def without(name: str):
    return lambda state: state.pop(name)


def put(name: str, *shape: int, dtype=torch.float32):
    return lambda state: state.update({name: torch.zeros(shape, dtype=dtype)})


ROWS = "cls_embedding.embedding_table.weight"
TRANSFORMERS = {
    "a tensor is missing": (without("layers.1.ffn_norm.weight"), (), "has no tensor layers.1.ffn_norm.weight .1 miss"),
    "a block is missing": (
        lambda state: [state.pop(name) for name in list(state) if ".0." in name], (), "has no matrix layers.0.att",
    ),
    "no codes": (without("tok_embeddings.weight"), (), "has no matrix tok_embeddings.weight"),
    "a tensor too much": (put("layers.1.attention.bias", 4), (), "holds layers.1.attention.bias .1 such"),
    "another shape": (put("output.weight", CODES, 8), (), r"output.weight has shape \(64, 8\), expected \(64, 32\)"),
    "a block of another width": (put("layers.1.attention.wo.weight", 8, 8), (), r"expected \(32, 32\)"),
    "text": (put("cls_embedding.cap_proj.fc1.weight", 8, 8), (), "conditional on text: expected a class-conditional"),
    "no class dropout": (put(ROWS, CLASSES, WIDTH), (), "has 5 rows, .*without class dropout"),
    "other classes": (put(ROWS, 11, WIDTH), (), r"has 11 rows, expected 5 \+ 1: give --classes 10"),
    "heads that do not divide": (put("x", 1), ("--heads", "3"), "--heads: expected heads of a multiple of 4"),
    "heads of too few dimensions": (put("x", 1), ("--heads", "16"), "--heads: expected heads of a multiple of 4"),
    "no heads": (put("x", 1), ("--heads", "0"), "--heads: expected heads"),
    "keys that are not shared equally": (
        put("layers.0.attention.wqkv.weight", WIDTH + 6 * SIZE, WIDTH), (), "--heads: 80 rows of layers.0.att",
    ),
    "two dtypes": (put("norm.weight", WIDTH, dtype=torch.float16), (), "expected all tensors in one of .* float16, fl"),
    "whole numbers": (put("norm.weight", WIDTH, dtype=torch.int64), (), "got float32, int64"),
}  # fmt: skip
TOKENIZERS = {
    "a tensor is missing": (without("decoder.mid.1.q.bias"), "has no tensor decoder.mid.1.q.bias"),
    "a level is missing": (
        without("encoder.conv_blocks.1.res.0.conv1.weight"),
        "no tensor encoder.conv_blocks.1",
    ),
    "a tensor too much": (put("loss.discriminator", 2), "holds loss.discriminator"),
    "another shape": (put("post_quant_conv.weight", 16, 4, 1, 1), r"shape \(16, 4, 1, 1\), expected \(16, 8, 1, 1\)"),
    "channels without groups": (put("encoder.conv_in.weight", 8, 3, 3, 3), "is no image tokenizer of LlamaGen's"),
    "other codes": (put("quantize.embedding.weight", 32, 8), "has 32 codes, expected 64, the codes of .*c2i.pt"),
}


@pytest.mark.parametrize("case", TRANSFORMERS)
def test_a_transformer_that_cannot_be_converted_is_told_in_one_line(convert, case):
    change, options, told = TRANSFORMERS[case]
    state = public_transformer()
    change(state)
    code, out, err, folder = convert({"model": state}, None, *options)
    assert (code, out, len(err)) == (2, "", 1)
    assert err[0].startswith("llamagen: error: ")
    assert folder.with_name("c2i.pt").as_posix() in err[0]
    assert_told(err[0], told)
    assert not folder.exists()


@pytest.mark.parametrize("case", TOKENIZERS)
def test_a_tokenizer_that_cannot_be_converted_is_told_in_one_line(convert, case):
    change, told = TOKENIZERS[case]
    state = public_tokenizer()
    change(state)
    code, out, err, folder = convert(None, {"model": state})
    assert (code, out, len(err)) == (2, "", 1)
    assert folder.with_name("vq.pt").as_posix() in err[0]
    assert_told(err[0], told)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([1, 2], "expected a dictionary of tensors, got list"),
        ({"steps": 3}, "expected tensors under model, module, state_dict or tok_embeddings.weight itself, .* steps"),
        (
            {"model": {"tok_embeddings.weight": 3}},
            "expected a tensor for every name, got int for tok_",
        ),
        ({"model": torch.ones(2)}, "expected tensors under model"),
        ({}, "got a file with nothing"),
    ],
)
def test_a_file_without_a_state_dict_is_told_in_one_line(convert, content, told):
    code, _, err, _ = convert(content)
    assert (code, len(err)) == (2, 1)
    assert_told(err[0], told)


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "cannot be read"), (b"text, no weights", "cannot be read"), (b"\x80\x04.", "cannot be read")],
)
def test_a_file_of_something_else_is_told_in_one_line(tmp_path, capsys, content, told):
    transformer, _ = save_public(tmp_path)
    transformer.write_bytes(content)
    code, _, err, _ = command(tmp_path, capsys)
    assert (code, len(err)) == (2, 1)
    assert_told(err[0], told)


def test_a_file_that_was_cut_short_is_told_in_one_line(tmp_path, capsys):
    transformer, _ = save_public(tmp_path)
    transformer.write_bytes(transformer.read_bytes()[:5000])
    code, _, err, _ = command(tmp_path, capsys)
    assert (code, len(err)) == (2, 1)
    assert_told(err[0], "c2i.pt cannot be read as a .pt file")


@pytest.mark.parametrize("size", ["9", "0", "-8"])
def test_an_image_size_that_codes_do_not_fill_is_refused(convert, size):
    code, _, err, _ = convert(None, None, "--image-size", size)
    assert (code, len(err)) == (2, 1)
    assert_told(err[0], f"--image-size: expected a multiple of 2, .* got {size}")


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path, capsys):
    save_public(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("kept")
    code, _, err, _ = command(tmp_path, capsys)
    assert (code, len(err)) == (2, 1)
    assert_told(err[0], "out is already there: name a new folder")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_disk_that_is_full_leaves_nothing(tmp_path, capsys, monkeypatch):
    save_public(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(llamagen_tokenizer, "write_tensors", full)
    code, _, err, _ = command(tmp_path, capsys)
    assert (code, len(err)) == (2, 1)
    assert_told(err[0], "No space left on device: .*/out'")
    assert {path.name for path in tmp_path.iterdir()} == {"c2i.pt", "vq.pt"}


def assert_told(line: str, told: str) -> None:
    assert re.search(told, line), line
