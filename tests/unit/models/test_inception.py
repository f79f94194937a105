"""InceptionV3 gives the features of torch-fidelity's, and reads weights in its layout without running pickled code."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from stages.errors import ParameterError
from stages.models.imaging.features import load_feature_network
from stages.models.imaging.inception import InceptionV3, resized

EXPECTED = {
    "pooled": [0.755888, 0.394765, 0.0, 0.307233, 0.460059, 0.00291705, 0.00811779, 0.0363423],
    "spatial": [0.0, 0.0, 0.430674, 0.0, 0.0, 0.0, 0.583707, 1.2605, 0.0, 0.0, 0.0],
    "logits": [-0.528181, 0.475055, -0.144238, 0.388015, -0.868635, 0.129509, -0.15974, 0.222326],
}
"""Every 256th pooled feature, every 200th spatial one and every 126th logit, as torch-fidelity 0.4.0 gives them
for these weights and this image (FeatureExtractorInceptionV3: 2048, logits_unbiased, and Mixed_6d.branch1x1)."""


def made_up_state():
    """Weights in which no activation dies or explodes; RandomState's numbers are the same for ever."""
    draw, state = np.random.RandomState(0), {}
    for name, value in InceptionV3().state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        numbers = torch.from_numpy(draw.standard_normal(value.numel()).astype(np.float32)).view(value.shape)
        if name.endswith("running_var"):
            state[name] = 0.5 + numbers.abs()
        elif value.dim() == 1:
            state[name] = (1.0 if name.endswith("bn.weight") else 0.0) + 0.1 * numbers
        else:
            state[name] = numbers * (2 / value[0].numel()) ** 0.5
    return state


@pytest.fixture(scope="module")
def state():
    return made_up_state()


def image():
    return (torch.arange(3 * 40 * 56) * 37 % 251).view(1, 3, 40, 56).byte()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_features_are_those_of_torch_fidelity(suffix, state, tmp_path):
    path = tmp_path / f"weights{suffix}"
    torch.save(state, path) if suffix == ".pth" else save_file(state, path)
    network = load_feature_network(path, "cpu")
    features = network(image())
    found = {
        "pooled": features.pooled[0, ::256],
        "spatial": features.spatial[0, ::200],
        "logits": features.logits[0, ::126],
    }
    for name, values in EXPECTED.items():
        torch.testing.assert_close(found[name], torch.tensor(values), rtol=1e-3, atol=1e-4)
    assert (features.pooled.shape, features.spatial.shape) == ((1, 2048), (1, 7 * 17 * 17))
    assert list(network.files) == [path.name]


def test_a_file_that_would_run_code_is_refused(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/sprung",)

    path = tmp_path / "weights.pth"
    path.write_bytes(pickle.dumps(Trap(), protocol=2))
    with pytest.raises(ParameterError, match="cannot be read as tensors by name"):
        load_feature_network(path, "cpu")
    torch.save({"fc.weight": Trap()}, path)
    with pytest.raises(ParameterError, match="cannot be read as tensors by name"):
        load_feature_network(path, "cpu")
    assert not (tmp_path / "sprung").exists()


def test_weights_of_another_network_are_refused_in_one_line(tmp_path):
    path = tmp_path / "weights.pth"
    torch.save({"layer.weight": torch.zeros(3)}, path)
    with pytest.raises(ParameterError, match=r"472 of 566 tensors are missing .*1 are not its own \(layer.weight\)"):
        load_feature_network(path, "cpu")
    torch.save([1, 2], path)
    with pytest.raises(ParameterError, match="expected tensors by name, got list"):
        load_feature_network(path, "cpu")


def test_pixels_are_taken_where_tensorflow_1_takes_them():
    row = torch.tensor([0.0, 100.0, 200.0]).view(1, 1, 1, 3).expand(1, 3, 3, 3)
    assert resized(row, 6)[0, 0, 0].tolist() == pytest.approx([0, 50, 100, 150, 200, 200])
    assert torch.equal(resized(row, 3), row)
