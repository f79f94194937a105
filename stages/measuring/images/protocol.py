"""The protocol of sampled images as one line of text: figures compare where these lines are equal."""

from __future__ import annotations

from torch import Tensor

from stages.artifacts.store import key_of
from stages.measuring.images.metrics import NEIGHBOURS, splits_of
from stages.measuring.images.reference import Reference
from stages.models.imaging.features import FeatureNetwork
from stages.params.evaluating import Images
from stages.params.ranges import as_ranges


def images_in_words(
    settings: Images, labels: Tensor, dtype: str, network: FeatureNetwork | None, reference: Reference | None
) -> str:
    """The protocol of samples of classes `labels` (n,), of their features and of the reference, in a line."""
    guided = "" if settings.guided_codes is None else f" of the first {settings.guided_codes} codes"
    drawn = (
        f"{len(labels)} samples of classes {as_ranges(set(labels.tolist()))} in turns, {settings.batch} at a time, "
        f"seed {settings.seed}; guidance {settings.guidance_scale:g}{guided}, temperature {settings.temperature:g}, "
        f"top-k {settings.top_k or 'all'}, top-p {settings.top_p:g}; {dtype.removeprefix('torch.')}"
    )
    if network is None:
        return drawn
    size = "" if settings.size is None else f" at {settings.size} pixels"
    features = f"features of {network.name}{size}, sha256 {key_of(files=dict(network.files))[:12]}"
    score = f"Inception score over {splits_of(len(labels))} split{'s' * (splits_of(len(labels)) > 1)}"
    if reference is None:
        return f"{drawn}; {features}; {score}"
    return f"{drawn}; {features}; {score}; against {reference.name}; precision and recall by {NEIGHBOURS} neighbours"
