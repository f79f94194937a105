"""Metrics of sampled images from features: FID, Inception score (torchmetrics), precision and recall."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

SPLIT = 5000
"""Samples of a split of the Inception score, as in ADM's evaluator."""
NEIGHBOURS = 3
"""Nearest neighbours whose distance is the radius of a sample's sphere."""
ROWS = 1024
"""Samples whose distances to all others are in memory at once."""


@dataclass(frozen=True)
class Moments:
    """Mean (d,) and covariance (d, d), unbiased, of the features of images."""

    mean: Tensor
    covariance: Tensor


def frechet_distance(features: Tensor, reference: Tensor | Moments) -> float:
    """FID (Heusel et al. 2017) of features (n, d) against those of a reference, in float64, by torchmetrics.

    |m - m_r|² + tr(C + C_r - 2 (C C_r)^(1/2)), of means m and unbiased covariances C. With spatial features: sFID (Nash
    et al. 2021). Both sets need two images at least.
    """
    from torchmetrics.image.fid import FrechetInceptionDistance

    given = nn.Identity()
    given.num_features = features.shape[1]  # type: ignore[assignment]
    metric = FrechetInceptionDistance(feature=given)
    for rows in features.split(ROWS):
        metric.update(rows.double(), real=False)
    if isinstance(reference, Moments):
        # Two images with this mean and covariance: the sums that the metric keeps.
        mean, covariance = reference.mean.double(), reference.covariance.double()
        metric.real_features_sum = 2 * mean
        metric.real_features_cov_sum = covariance + 2 * torch.outer(mean, mean)
        metric.real_features_num_samples = torch.tensor(2)
    else:
        for rows in reference.split(ROWS):
            metric.update(rows.double(), real=True)
    return float(metric.compute())


def inception_score(logits: Tensor) -> float:
    """Inception score (Salimans et al. 2016) of logits (n, classes), in float64, by torchmetrics.

    exp of the mean of KL(p(class | image) || p(class)), averaged over splits of as near 5,000 samples as can be had of
    equal size, one of fewer; torchmetrics shuffles the samples before, here always in the same way.
    """
    from torchmetrics.image.inception import InceptionScore

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of keeping all features, which are here anyway
        metric = InceptionScore(feature=nn.Identity(), splits=splits_of(len(logits)))
    metric.update(logits.double())
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the standard deviation over one split, which is not used
        torch.manual_seed(0)
        mean, _ = metric.compute()
    return float(mean)


def splits_of(count: int) -> int:
    """Splits of the Inception score of `count` samples."""
    return max(1, round(count / SPLIT))


def precision_recall(samples: Tensor, reference: Tensor) -> tuple[float, float]:
    """Improved precision and recall (Kynkäänniemi et al. 2019) of features (n, d) and (m, d), in float64.

    Precision is the share of samples within the sphere of a reference image, whose radius reaches its 3rd nearest
    neighbour among reference images; recall the share of reference images within the sphere of a sample. Both sets need
    4 images at least. ADM's evaluator takes distances in float16 where they are finite.
    """
    samples, reference = samples.double(), reference.double()
    return _share_within(samples, reference), _share_within(reference, samples)


def _share_within(points: Tensor, centres: Tensor) -> float:
    radii = torch.cat([torch.cdist(rows, centres).kthvalue(NEIGHBOURS + 1).values for rows in centres.split(ROWS)])
    within = [(torch.cdist(rows, centres) <= radii).any(1) for rows in points.split(ROWS)]
    return float(torch.cat(within).double().mean())
