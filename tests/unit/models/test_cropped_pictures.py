"""Square crops keep the centre, and leave pictures of the size asked for as they are."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from stages.models.imaging.pictures import cropped


def noise(height, width):
    return torch.randint(256, (3, height, width), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_a_picture_of_the_size_is_not_touched():
    pixels = noise(8, 8)
    assert torch.equal(cropped(pixels, 8), pixels)


@pytest.mark.parametrize(("height", "width"), [(8, 15), (15, 8)])
def test_the_middle_of_the_longer_side_is_taken(height, width):
    pixels = noise(height, width)
    top, left = (height - 8) // 2, (width - 8) // 2
    assert torch.equal(cropped(pixels, 8), pixels[:, top : top + 8, left : left + 8])


def test_large_pictures_are_halved_by_averaging():
    pixels = noise(32, 32)
    expected = F.avg_pool2d(pixels.float(), 4)
    torch.testing.assert_close(cropped(pixels, 8).float(), expected, atol=2, rtol=0)  # four roundings


@pytest.mark.parametrize(("height", "width"), [(11, 14), (5, 9), (17, 40)])
def test_other_sizes_are_scaled_to_the_shorter_side(height, width):
    gray = torch.full((3, height, width), 90, dtype=torch.uint8)
    assert torch.equal(cropped(gray, 8), torch.full((3, 8, 8), 90, dtype=torch.uint8))
