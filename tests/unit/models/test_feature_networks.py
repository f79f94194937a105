"""Image classifiers of transformers as feature networks: whatever their architecture, the same three features."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    ConvNextConfig,
    ConvNextForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

from stages.errors import ParameterError
from stages.models.imaging.features import load_feature_network

CLASSES = 6
NETWORKS = {
    "resnet": (ResNetForImageClassification, ResNetConfig, {"hidden_sizes": [4, 8, 6], "depths": [1, 1, 1],
                                                            "layer_type": "basic", "embedding_size": 4}, (8, 4, 4)),
    "convnext": (ConvNextForImageClassification, ConvNextConfig, {"hidden_sizes": [4, 8, 8, 6], "depths": [1] * 4},
                 (8, 2, 2)),
    "vit": (ViTForImageClassification, ViTConfig, {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
                                                   "intermediate_size": 8, "image_size": 32, "patch_size": 8}, (8, 17)),
}  # fmt: skip
"""Classifier, configuration, sizes, and the shape of the last but one hidden state, channels first."""
EVERY_NETWORK = pytest.mark.parametrize("name", sorted(NETWORKS))


def save(folder, name, classes=CLASSES):
    build, configure, sizes, _ = NETWORKS[name]
    torch.manual_seed(0)
    model = build(configure(num_labels=classes, **sizes)).eval()
    model.save_pretrained(folder)
    return model


def images(side=32):
    return torch.randint(256, (3, 3, side, side), generator=torch.Generator().manual_seed(0)).byte()


@EVERY_NETWORK
def test_pooled_features_are_what_the_head_turns_into_logits(name, tmp_path):
    model = save(tmp_path, name)
    network = load_feature_network(tmp_path, "cpu")
    features = network(images())
    with torch.no_grad():
        output = model(pixel_values=images() / 127.5 - 1, output_hidden_states=True)
    torch.testing.assert_close(features.logits, output.logits)
    torch.testing.assert_close(network.head(features.pooled), output.logits)
    assert (features.pooled.shape[0], network.classes) == (3, CLASSES)
    channels, *place = NETWORKS[name][3]
    state = output.hidden_states[-2]
    state = state if len(place) == 2 else state.transpose(1, 2)
    assert state.shape[1:] == (channels, *place)
    torch.testing.assert_close(features.spatial, state[:, :7].reshape(3, -1))


def test_pixels_are_prepared_by_the_processor_of_the_folder(tmp_path):
    model = save(tmp_path, "vit")
    processor = ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.4] * 3, image_std=[0.2] * 3)
    processor.save_pretrained(tmp_path)
    network = load_feature_network(tmp_path, "cpu")
    with torch.no_grad():
        expected = model(pixel_values=(images() / 255 - 0.4) / 0.2).logits
    torch.testing.assert_close(network(images()).logits, expected, rtol=1e-4, atol=1e-5)
    assert network(images(48)).logits.shape == (3, CLASSES)
    assert "ViTImageProcessor" in network.name
    assert "preprocessor_config.json" in network.files


def test_images_that_a_network_cannot_take_are_told_of(tmp_path):
    save(tmp_path, "vit")
    with pytest.raises(ParameterError, match=r"cannot take images of 16 x 16 pixels .*preprocessor_config\.json"):
        load_feature_network(tmp_path, "cpu")(images(16))


def test_a_network_without_classes_is_refused(tmp_path):
    save(tmp_path, "vit", classes=0)
    with pytest.raises(ParameterError, match="does not end in a linear with a row for each class"):
        load_feature_network(tmp_path, "cpu")


def test_a_classifier_is_never_unpickled(tmp_path):
    model = save(tmp_path, "resnet")
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ParameterError, match="cannot be loaded as an image classifier"):
        load_feature_network(tmp_path, "cpu")
