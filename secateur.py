"""`import secateur`, and AutoModelForCausalLM loads checkpoints whose blocks have different widths, or sliced states.

It registers the classes that such a checkpoint also carries in its modeling_hetero.py or modeling_sliced.py, so that
`trust_remote_code` is not needed. docs/checkpoints.md and docs/slicegpt.md tell more.
"""

from stages import __version__
from stages.models.classes import hetero, sliced

__all__ = ["__version__", "hetero", "sliced"]
