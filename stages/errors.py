"""What a person is told when something cannot go on: one line, with the way out."""


class SecateurError(Exception):
    """Something the user can put right; the message says what was expected, what came, what to do."""


class ParameterError(SecateurError):
    """A value in params.yaml that cannot be used; the message begins with the parameter's name."""


class SourceError(SecateurError):
    """A model, text or wheel that cannot be had, or is not what its hash says."""


class UnreachableError(SourceError):
    """The network did not answer: the one failure that a second try can cure."""


class ArtifactError(SecateurError):
    """A file that is missing, corrupt, or made from other inputs than the ones at hand."""


class NotFiniteError(SecateurError):
    """NaN or infinity in weights, activations or statistics; the message names the place."""


class NotPositiveDefiniteError(SecateurError):
    """A Gram matrix that no allowed damping made positive definite."""


class ArchitectureError(SecateurError):
    """A model whose blocks or linears could not be found by their structure."""


class GatingError(SecateurError):
    """Parameter groups that cannot be gated as asked, or an optimiser that would not train them as the theory needs."""
