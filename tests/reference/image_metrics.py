"""Metrics of images from features, by their definitions, in float64: loops, and roots of symmetric matrices."""

from __future__ import annotations

import numpy as np


def frechet_distance(first, second):
    """Of two sets of features (n, d): the closed form of the Fréchet distance of Gaussians."""
    means, covariances = zip(*((x.mean(0), np.cov(x, rowvar=False)) for x in (first, second)), strict=True)
    return frechet_of_moments(*means, *covariances)


def frechet_of_moments(mean, other_mean, covariance, other_covariance):
    root = square_root(covariance)
    cross = square_root(root @ other_covariance @ root)  # of the same trace as the root of the product
    return ((mean - other_mean) ** 2).sum() + np.trace(covariance + other_covariance - 2 * cross)


def square_root(matrix):
    """Of a symmetric matrix without negative eigenvalues but for rounding."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * np.sqrt(values.clip(min=0))) @ vectors.T


def inception_score(logits):
    """Of logits (n, classes), one split."""
    total, shares = 0.0, []
    for row in logits:
        weights = np.exp(row - row.max())
        shares.append(weights / weights.sum())
    marginal = sum(shares) / len(shares)
    for share in shares:
        total += sum(p * (np.log(p) - np.log(q)) for p, q in zip(share, marginal, strict=True))
    return np.exp(total / len(shares))


def precision(samples, reference, neighbours=3):
    """Share of samples that lie in the sphere of some reference image; recall with the two exchanged."""
    inside = 0
    radii = []
    for i, centre in enumerate(reference):
        others = sorted(np.linalg.norm(centre - other) for j, other in enumerate(reference) if j != i)
        radii.append(others[neighbours - 1])
    for sample in samples:
        inside += any(
            np.linalg.norm(sample - centre) <= radius for centre, radius in zip(reference, radii, strict=True)
        )
    return inside / len(samples)
