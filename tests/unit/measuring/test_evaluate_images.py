"""The evaluate stage of a model of images: its samples, its figures, its reference, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from stages.artifacts.manifest import write_manifest
from stages.measuring.images import samples as sampling_module
from stages.measuring.images import stored_features as features_module
from stages.measuring.images.figures import figures_of
from stages.measuring.images.metrics import Moments
from stages.measuring.images.reference import Reference, load_reference
from stages.measuring.images.samples import seed_of
from stages.models.imaging.features import Features, Inception, load_feature_network
from stages.models.imaging.inception import InceptionV3
from stages.models.imaging.pictures import write_picture
from stages.models.imaging.tokenizer import decode, load_image_tokenizer
from tests.helpers.image_workspace import (
    figures,
    image_workspace,
    protocol,
    reference_images,
    run,
    save_classifier,
    save_npz,
    settings,
)
from tests.helpers.killing import Killed, kill_in
from tests.helpers.llamagen import CLASSES, CODES, SIDE
from tests.helpers.tiny import tiny_workspace, write_params
from tests.reference import image_metrics as plain


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A workspace that was made once."""
    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        image_workspace(folder)
    return folder


@pytest.fixture
def workspace(template, tmp_path, monkeypatch):
    folder = tmp_path / "project"
    shutil.copytree(template, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def refused(workspace, capsys):
    """Run the stage, which must fail in one line and write nothing; gives the line."""

    def line(which="dense"):
        assert run(which) == 2
        told = [line for line in capsys.readouterr().err.splitlines() if ": error: " in line]
        assert len(told) == 1
        assert not Path(f"metrics/{which}.json").exists()
        return told[0]

    return line


def outputs(which="dense"):
    """Hash of every file that the stage wrote."""
    paths = [Path(f"metrics/{which}.json"), *sorted(Path(f"data/evaluation/{which}").iterdir())]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def samples(which="dense"):
    return load_file(f"data/evaluation/{which}/samples.safetensors")


def cost(which="dense"):
    return json.loads(Path(f"metrics/cost/evaluate_{which}.json").read_text())


def as_pruned(change=None):
    """data/pruned, the model with its weights changed."""
    shutil.copytree("data/model", "data/pruned")
    if change:
        path = Path("data/pruned/model.safetensors")
        weights = load_file(path)
        change(weights)
        save_file(weights, path, {"format": "pt"})
    Path("data/pruned/manifest.json").unlink()
    write_manifest(Path("data/pruned"), {"source": {}})
    Path("data/pruned/manifest.json").rename("data/pruned/pruning_manifest.json")


def test_figures_are_those_of_the_samples_that_are_kept(workspace):
    assert run() == 0
    kept, measured = samples(), figures()
    assert kept["labels"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert kept["codes"].shape == (10, 16)
    assert 0 <= int(kept["codes"].min()) <= int(kept["codes"].max()) < CODES
    network = load_feature_network(Path("classifier"), "cpu")
    found = network(decode(load_image_tokenizer(Path("data/model"), "cpu"), kept["codes"].long()))
    wanted = network(reference_images())
    pairs = {part: [getattr(each, part).double().numpy() for each in (found, wanted)] for part in ("pooled", "spatial")}
    expected = {
        "count": 10,
        "fid": plain.frechet_distance(*pairs["pooled"]),
        "sfid": plain.frechet_distance(*pairs["spatial"]),
        "inception_score": plain.inception_score(found.logits.double().numpy()),
        "precision": plain.precision(*pairs["pooled"]),
        "recall": plain.precision(*reversed(pairs["pooled"])),
        "accuracy": float((found.logits.argmax(1) == kept["labels"]).double().mean()),
    }
    assert measured == pytest.approx(expected, rel=1e-3)
    assert cost()["images_per_second"] > 0


def test_the_protocol_names_what_figures_depend_on(workspace):
    assert run() == 0
    told = protocol()["images"]
    for part in ("10 samples of classes 0-4 in turns, 4 at a time, seed 0", "guidance 1.75", "float32",
                 "features of ResNetForImageClassification, sha256", "9 images of reference, sha256"):  # fmt: skip
        assert part in told
    assert "the 16 codes of each of 6 images after its class; 96 codes scored" in protocol()["perplexity"]


def test_the_picture_has_a_column_a_class(workspace):
    assert run() == 0
    with Image.open("data/evaluation/dense/samples.png") as picture:
        assert picture.size == (5 * SIDE + 4 * 2, 2 * SIDE + 2)
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    image = decode(load_image_tokenizer(Path("data/model"), "cpu"), samples()["codes"][5:6].long())[0]
    assert torch.equal(pixels[:, SIDE + 2 :, :SIDE], image)


@pytest.mark.parametrize(("module", "function"), [(sampling_module, "sample_codes"), (features_module, "decode")])
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(module, function, workspace, monkeypatch):
    assert run() == 0
    undisturbed, made = outputs(), cost()["blocks_made"]
    shutil.rmtree(".cache/blocks")
    with monkeypatch.context() as patch:
        kill_in(patch, module, function, 2)
        with pytest.raises(Killed):
            run()
    assert run() == 0
    assert outputs() == undisturbed
    assert cost()["blocks_restored"] == made - (2 if function == "sample_codes" else 1)


def test_the_pruned_model_draws_with_the_dense_models_random_numbers_and_shares_its_reference(workspace):
    assert run() == 0
    as_pruned(lambda weights: weights["lm_head.weight"].mul_(1.0001))
    assert run("pruned") == 0
    assert (samples("pruned")["codes"] == samples()["codes"]).double().mean() > 0.9
    assert protocol("pruned") == protocol()
    # Of the windows, the reference, and three groups of codes and of features, the reference alone is found again.
    assert cost("pruned")["blocks_restored"] >= 1
    assert cost("pruned")["blocks_made"] >= 4


def test_a_sample_does_not_depend_on_the_groups_after_its_own_but_on_the_seed(workspace):
    assert run() == 0
    first = samples()["codes"]
    write_params(workspace, evaluate=settings(count=14))
    assert run() == 0
    assert torch.equal(samples()["codes"][:8], first[:8])
    assert len({seed_of(seed, group) for seed in (0, 1, -1) for group in range(50)}) == 150
    write_params(workspace, evaluate=settings(seed=1))
    assert run() == 0
    assert not torch.equal(samples()["codes"], first)


def test_settings_of_sampling_reach_the_model(workspace):
    write_params(workspace, evaluate=settings(top_k=1, classes=[3, "0-1"], guidance_scale=3, guided_codes=5))
    assert run() == 0
    kept = samples()
    assert kept["labels"].tolist() == [0, 1, 3] * 3 + [0]
    assert torch.equal(kept["codes"][0], kept["codes"][3])
    assert "classes 0-1, 3 in turns" in protocol()["images"]
    assert "guidance 3 of the first 5 codes" in protocol()["images"]


def test_without_features_images_are_drawn_and_nothing_is_measured(workspace):
    write_params(workspace, evaluate=settings(features=None, reference=None, shown=0))
    assert run() == 0
    measured = figures()
    assert measured.pop("count") == 10
    assert set(measured.values()) == {None}
    assert set(protocol()["images_left_out"].values()) == {"evaluate.images.features is null"}
    assert sorted(path.name for path in Path("data/evaluation/dense").iterdir()) == [
        "protocol.json", "samples.safetensors",
    ]  # fmt: skip


def test_without_images_nothing_is_drawn(workspace):
    write_params(workspace, evaluate=settings(count=0, batch=16, shown=16, features=None, reference=None))
    assert run() == 0
    assert figures() is None
    assert protocol()["images"] == ""


def test_a_network_of_other_classes_tells_no_accuracy(workspace):
    save_classifier(workspace / "other", CLASSES + 1)
    write_params(workspace, evaluate=settings(features="other", reference=None))
    assert run() == 0
    measured = figures()
    assert measured["inception_score"] >= 1
    assert measured["accuracy"] is measured["fid"] is measured["precision"] is None
    assert "not the model's" in protocol()["images_left_out"]["accuracy"]


def test_samples_are_resized_to_what_they_are_compared_at(workspace):
    shutil.rmtree("reference")
    Path("reference").mkdir()
    for index, image in enumerate(reference_images(side=2 * SIDE)):
        write_picture(Path(f"reference/{index}.png"), image)
    write_params(workspace, evaluate=settings(size=2 * SIDE))
    assert run() == 0
    assert figures()["fid"] > 0
    assert f"at {2 * SIDE} pixels" in protocol()["images"]


def test_an_npz_of_images_is_the_folder_of_them(workspace):
    assert run() == 0
    expected = figures()
    save_npz(Path("reference.npz"), arr_0=reference_images().permute(0, 2, 3, 1).numpy())
    write_params(workspace, evaluate=settings(reference="reference.npz"))
    assert run() == 0
    assert figures() == pytest.approx(expected)


def test_moments_without_images_leave_out_precision_and_recall():
    made = Features(*(torch.randn(12, width, generator=torch.Generator().manual_seed(0)) for width in (4, 3, 5)))
    moments = [Moments(part.double().mean(0), torch.cov(part.double().T)) for part in (made.pooled, made.spatial)]
    found, left_out = figures_of(made, torch.zeros(12), False, Reference("moments", None, *moments))
    assert (found["fid"], found["sfid"]) == pytest.approx((0, 0), abs=1e-6)
    assert left_out["precision"] == left_out["recall"] == "the reference holds no images (arr_0), only moments"


def test_moments_of_adms_file_are_taken_for_inception_and_for_no_other_network(tmp_path):
    path = tmp_path / "reference.npz"
    save_npz(path, mu=np.arange(4.0), sigma=np.eye(4, dtype=np.float32), mu_s=np.zeros(3), sigma_s=np.eye(3))
    reference = load_reference(None, Inception(InceptionV3(), {}), path, 256)
    assert reference.features is None
    assert torch.equal(reference.pooled.mean, torch.arange(4.0).double())
    assert torch.equal(reference.spatial.covariance, torch.eye(3).double())


def test_few_samples_are_measured_with_a_warning(workspace, logged):
    write_params(workspace, evaluate=settings(count=4, shown=4))
    assert run() == 0
    assert "sfid: 4 images are no more than the 7 features, so it is too large" in logged.text
    assert figures()["precision"] is not None
    write_params(workspace, evaluate=settings(count=1, shown=1))
    assert run() == 0
    measured, why = figures(), protocol()["images_left_out"]
    assert measured["fid"] is measured["precision"] is None
    assert why["fid"] == "a covariance is of two images at least, got 1"
    assert why["recall"] == "3 neighbours want 4 images, got 1"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"features": "none"}, "evaluate.images.features: none is missing: give the folder of a transformers image"),
        ({"features": "data/texts"}, "data/texts cannot be loaded as an image classifier"),
        ({"features": "params.yaml"}, "params.yaml cannot be read as tensors by name"),
        ({"reference": "none"}, "evaluate.images.reference: expected a folder of images, or an .npz file"),
        ({"reference": "data/texts"}, "data/texts: expected image files (.png, .jpg"),
        ({"reference": "wrong.npz"}, "wrong.npz: expected mu and sigma, or images in arr_0, got x"),
        ({"reference": "objects.npz"}, "arr_0 of objects.npz cannot be read"),
        ({"reference": "broken.npz"}, "broken.npz cannot be read as .npz"),
        (
            {"reference": "moments.npz"},
            "moments.npz holds no images (arr_0), and its moments are of Inception features",
        ),
        ({"reference": "floats.npz"}, "arr_0 of floats.npz: expected bytes (n, height, width, 3), got float64"),
        ({"reference": "mixed"}, "mixed/b.png has 4 x 4 pixels, the samples 8 x 8"),
        ({"reference": "torn"}, "torn/a.png cannot be read as an image"),
        ({"size": 16}, "has 8 x 8 pixels, the samples 16 x 16"),
        ({"classes": [5]}, "evaluate.images.classes: expected some of 0 to 4"),
        ({"names": ["arc_easy"]}, "evaluate.tasks.names: the model draws images and answers no tasks of text"),
        ({"perplexity": {"bos": True}}, "evaluate.perplexity.bos: the class stands before the codes"),
        ({"perplexity": {"window": 16, "stride": 16}}, "evaluate.perplexity.window: expected 17, the class and the"),
        ({"perplexity": {"stride": 8}}, "evaluate.perplexity.stride: expected 17"),
    ],
)
def test_what_cannot_be_honoured_is_refused_in_one_line(change, told, workspace, refused):
    save_npz(Path("wrong.npz"), x=np.zeros(3))
    save_npz(Path("objects.npz"), arr_0=np.array([{}, {}], dtype=object))
    save_npz(Path("moments.npz"), mu=np.zeros(3), sigma=np.eye(3))
    save_npz(Path("floats.npz"), arr_0=np.zeros((2, 8, 8, 3)))
    Path("broken.npz").write_bytes(b"PK\x03\x04 and no more")
    for folder, pictures in {"mixed": {"a": 8, "b": 4}, "torn": {}}.items():
        Path(folder).mkdir()
        for name, side in pictures.items():
            write_picture(Path(folder) / f"{name}.png", torch.zeros(3, side, side, dtype=torch.uint8))
    Path("torn/a.png").write_bytes(b"\x89PNG and no more")
    write_params(workspace, evaluate=settings(**change))
    assert told in refused()


def test_logits_that_are_not_finite_are_refused(workspace, refused):
    as_pruned(lambda weights: weights["lm_head.weight"].fill_(float("nan")))
    assert "not finite" in refused("pruned")


def test_a_model_without_its_image_tokenizer_is_refused(workspace, refused):
    shutil.rmtree("data/model/image_tokenizer")
    write_manifest(Path("data/model"), {"source": {}})
    assert "data/model/image_tokenizer/config.json is missing" in refused()


def test_a_model_of_text_draws_no_images(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny_workspace(tmp_path, evaluate=settings(perplexity={"window": 16, "stride": 16}))
    assert run() == 2
    assert (
        "evaluate.images.count: the model is of text and draws no images: expected 0, got 10" in capsys.readouterr().err
    )
