"""FID, Inception score, precision and recall are those of their definitions; laws that they must keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stages.measuring.images.metrics import (
    Moments,
    frechet_distance,
    inception_score,
    precision_recall,
    splits_of,
)
from tests.reference import image_metrics as plain


@pytest.fixture(scope="module")
def sets():
    """Features of 80 samples and of 60 reference images, correlated and of unlike means."""
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(6, 6, generator=generator)
    samples = torch.randn(80, 6, generator=generator) @ mixing
    return samples, torch.randn(60, 6, generator=generator) @ mixing.T + 0.5


def test_frechet_distance_is_that_of_the_closed_form(sets):
    samples, reference = sets
    expected = plain.frechet_distance(samples.double().numpy(), reference.double().numpy())
    assert frechet_distance(samples, reference) == pytest.approx(expected, rel=1e-9)


def test_moments_of_a_reference_stand_for_its_features(sets):
    samples, reference = sets
    x = reference.double()
    moments = Moments(x.mean(0), torch.cov(x.T))
    assert frechet_distance(samples, moments) == pytest.approx(frechet_distance(samples, reference), rel=1e-9)


def test_frechet_distance_of_a_set_to_itself_is_nought_and_a_shift_adds_its_square(sets):
    samples, _ = sets
    shift = torch.tensor([3.0, 0, 0, 0, 0, 4.0])
    assert frechet_distance(samples, samples) == pytest.approx(0, abs=1e-6)
    assert frechet_distance(samples + shift, samples) == pytest.approx(25, rel=1e-4)


def test_fewer_images_than_features_still_have_a_distance():
    first, second = torch.randn(2, 5, 40, generator=torch.Generator().manual_seed(1))
    expected = plain.frechet_distance(first.double().numpy(), second.double().numpy())
    assert frechet_distance(first, second) == pytest.approx(expected, rel=1e-3)


def test_inception_score_is_that_of_its_definition():
    logits = 3 * torch.randn(50, 7, generator=torch.Generator().manual_seed(2))
    assert inception_score(logits) == pytest.approx(plain.inception_score(logits.double().numpy()), rel=1e-9)


def test_inception_score_is_between_one_and_the_number_of_classes():
    certain = 100 * torch.eye(5).repeat(4, 1)
    assert inception_score(certain) == pytest.approx(5)
    assert inception_score(torch.zeros(20, 5)) == pytest.approx(1)


def test_inception_score_draws_no_random_numbers_of_the_caller():
    logits = torch.randn(30, 4, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    values = {inception_score(logits) for _ in range(3)}
    assert torch.equal(torch.rand(1), expected)
    assert len(values) == 1


@pytest.mark.parametrize(("count", "splits"), [(50_000, 10), (5000, 1), (12, 1), (10_000, 2), (7000, 1), (8000, 2)])
def test_splits_are_of_five_thousand_samples_as_near_as_can_be(count, splits):
    assert splits_of(count) == splits


def test_precision_and_recall_are_those_of_brute_force(sets, monkeypatch):
    samples, reference = (part.double().numpy() for part in sets)
    expected = plain.precision(samples, reference), plain.precision(reference, samples)
    assert 0 < min(expected) < max(expected) < 1
    monkeypatch.setattr("stages.measuring.images.metrics.ROWS", 7)
    assert precision_recall(*sets) == pytest.approx(expected)


def test_precision_is_lost_by_samples_far_away_and_recall_by_samples_of_one_place(sets):
    samples, _ = sets
    spoilt = torch.cat([samples, samples + 1000])
    assert precision_recall(spoilt, samples)[0] == pytest.approx(0.5)
    narrow = samples[:1] + 1e-3 * torch.randn(20, 6, generator=torch.Generator().manual_seed(4))
    precision, recall = precision_recall(narrow, samples)
    assert (precision, recall) == (1.0, pytest.approx(1 / 80))


def test_figures_do_not_depend_on_the_order_of_images(sets):
    samples, reference = sets
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(samples)))
    assert frechet_distance(samples[order], reference) == pytest.approx(frechet_distance(samples, reference), rel=1e-9)
    assert precision_recall(samples[order], reference) == precision_recall(samples, reference)
