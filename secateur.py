"""`import secateur`, and AutoModelForCausalLM loads LlamaGen, and checkpoints of unequal blocks or sliced states.

It registers the classes that such a checkpoint also carries in its modeling files, so that `trust_remote_code` is not
needed. docs/checkpoints.md, docs/slicegpt.md and docs/images.md tell more.
"""

from stages import __version__
from stages.models.classes import hetero, llamagen, sliced

__all__ = ["__version__", "hetero", "llamagen", "sliced"]
