"""`import secateur`, and AutoModelForCausalLM loads checkpoints whose blocks have different widths.

It registers the classes that such a checkpoint also carries in its modeling_hetero.py, so that `trust_remote_code`
is not needed. docs/checkpoints.md tells more.
"""

from stages import __version__
from stages.models import hetero

__all__ = ["__version__", "hetero"]
