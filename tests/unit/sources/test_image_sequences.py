"""Images as calibration: drawn by the model or encoded from files, class after class, once with and once without it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from stages.artifacts.manifest import hashes_of, read_json, read_manifest
from stages.artifacts.places import MODEL, TEXTS
from stages.artifacts.tokens import read_tokens
from stages.fetch import SECTIONS, main
from stages.models.imaging.pictures import cropped, read_picture
from stages.models.imaging.tokenizer import encode, load_image_tokenizer
from stages.models.loading.load import load_model
from stages.runtime.stage import run_stage
from stages.sources import codes
from tests.helpers.images import CODES, DRAWN, SEQUENCE, image_project, save_images, write_image_params
from tests.helpers.killing import Killed, kill_in
from tests.helpers.llamagen import CLASSES, SIDE
from tests.helpers.llamagen import CODES as VOCABULARY

NULL = VOCABULARY + CLASSES
TEXTS_OF_WORDS = {name: {"source": "local", "path": f"{name}.txt"} for name in ("calibration", "evaluation")}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    image_project(folder)
    return folder


@pytest.fixture(autouse=True)
def workspace(project, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("source").symlink_to(project / "source")
    save_images(Path("seen"), each=3, side=2 * SIDE + 3)
    save_images(Path("unseen"), each=1, seed=1)


def fetch(**sections):
    """Run the stage with `sections` of fetch in the place of the tiny project's."""
    values = {"calibration": DRAWN, "evaluation": {**DRAWN, "images": 1, "seed": 1}, **sections}
    write_image_params(Path(), fetch=values)
    return run_stage("fetch", main, SECTIONS)


def files(path, **options):
    return {"source": "images", "path": path, "device": "cpu", **options}


def sequences(name="calibration"):
    return read_tokens(TEXTS, name, read_manifest(TEXTS)).view(-1, SEQUENCE)


def hashes(folder=TEXTS):
    return hashes_of(folder)


def test_images_drawn_are_the_models_own_and_stand_after_their_class_and_after_no_class():
    assert fetch(calibration={**DRAWN, "guidance_scale": 3.0, "top_k": 1, "classes": ["1-2"]}) == 0
    rows, facts = sequences(), read_manifest(TEXTS)["calibration"]
    labels = [1, 2, 1, 2]
    assert rows[::2, 0].tolist() == [VOCABULARY + label for label in labels]
    assert set(rows[1::2, 0].tolist()) == {NULL}
    assert torch.equal(rows[::2, 1:], rows[1::2, 1:])
    model = load_model(MODEL, device="cpu")
    greedy = model.generate(class_labels=torch.tensor(labels), guidance_scale=3.0, do_sample=False)
    assert torch.equal(rows[::2, 1:], greedy)
    assert (facts["images"], facts["sequence"], facts["tokens"]) == (4, SEQUENCE, rows.numel())
    assert read_manifest(TEXTS)["evaluation"]["overlap"] == 0


def test_files_are_cropped_encoded_and_taken_in_turns():
    chosen = files("seen", images="0-1", shuffle=5)
    assert fetch(calibration={**chosen, "unconditional": False}, evaluation=files("unseen")) == 0
    expected, tokenizer = [], load_image_tokenizer(MODEL, "cpu")
    for label in range(CLASSES):
        names = sorted(Path("seen").joinpath(f"class{label}").iterdir())
        random.Random(f"5 {label}").shuffle(names)
        pixels = torch.stack([cropped(read_picture(name), SIDE) for name in names[:2]])
        heads = torch.full((2, 1), VOCABULARY + label)
        expected.append(torch.cat((heads, encode(tokenizer, pixels)), 1))
    assert torch.equal(sequences(), torch.stack(expected, 1).flatten(0, 1))
    assert len(sequences("evaluation")) == 2 * CLASSES


def test_a_fetch_that_was_killed_draws_the_rest_and_gives_the_same_bytes(monkeypatch):
    assert fetch() == 0
    whole = hashes(), hashes(MODEL)
    for path in Path(".cache/blocks").glob("*/*"):
        path.unlink()
    with monkeypatch.context() as patch:
        kill_in(patch, codes, "sample_codes", 2)
        with pytest.raises(Killed):
            fetch()
    assert fetch() == 0
    cost = read_json(Path("metrics/cost/fetch.json"))
    assert (cost["blocks_restored"], cost["blocks_made"]) == (2, 3)  # of three groups, and two of evaluation
    assert (hashes(), hashes(MODEL)) == whole


def test_another_seed_draws_other_images():
    assert fetch() == 0
    first = sequences()
    assert fetch(calibration={**DRAWN, "seed": 2}) == 0
    assert torch.equal(sequences()[:, 0], first[:, 0])
    assert (sequences()[:, 1:] != first[:, 1:]).any()


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"evaluation": {"source": "local", "path": "a.txt"}}, "fetch.evaluation.source: expected images, generated "),
        (TEXTS_OF_WORDS, "fetch.calibration.source: expected images or generated, since fetch.model is a model of im"),
        ({"evaluation": DRAWN}, "10 of its 10 images are also in calibration, expected at most 1.0% (fetch.max_ov"),
        (
            {"calibration": {**DRAWN, "images": 1, "unconditional": False}},
            "its 5 images make 5 sequences, expected at lea",
        ),
        ({"calibration": {**DRAWN, "classes": [7]}}, "fetch.calibration.classes: expected some of 0 to 4"),
        ({"calibration": {**DRAWN, "guided_codes": 17}}, f"guided_codes: expected at most {CODES}, the codes"),
        ({"calibration": {**DRAWN, "device": "cuda:9"}}, "fetch.calibration.device: expected one of 0 CUDA"),
        ({"calibration": files("none")}, "fetch.calibration.path: none is not there: expected a folder with one"),
        ({"calibration": files("seen/class0")}, "seen/class0 holds 0 folders, expected 5, one for each class"),
        ({"calibration": files("empty")}, "expected image files (.png, .jpg, .jpeg, .webp) in the folders of empty"),
        ({"calibration": files("seen", images="2-3")}, "fetch.calibration.images: expected a last one of at most 2"),
        ({"calibration": files("seen", images=0)}, "expected at least 1 image of each class, got 0"),
        ({"calibration": files("spoiled")}, "spoiled/class3/1.png cannot be read as an image"),
    ],
)
def test_sources_that_cannot_serve_end_in_one_line_and_nothing_is_written(sections, told, capsys):
    for name in TEXTS_OF_WORDS:
        Path(f"{name}.txt").write_text(f"{name} " * 900, encoding="utf-8")
    for label in range(CLASSES):
        Path(f"empty/class{label}").mkdir(parents=True)
    if "spoiled" in told:
        save_images(Path("spoiled"))
        Path("spoiled/class3/1.png").write_bytes(b"no picture")
    assert fetch(**sections) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if ": error: " in line]
    assert len(errors) == 1
    assert told in errors[0]
    assert not MODEL.exists()
    assert not TEXTS.exists()


def test_images_are_no_source_for_a_model_of_text(capsys):
    from tests.helpers.tiny import save_tiny

    save_tiny(Path("words"), "llama")
    assert fetch(model={"source": "local", "path": "words"}) == 2
    told = "fetch.calibration.source: expected hub, local or wheel, since fetch.model is a model of text, got generated"
    assert told in capsys.readouterr().err
