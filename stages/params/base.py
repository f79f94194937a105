"""Base class and common types of the sections of params.yaml."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stages.errors import unknown
from stages.params.faults import fault_at

DType = Literal["auto", "float32", "bfloat16", "float16"]
"""A floating-point dtype, or `auto`, whose meaning each setting tells."""
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")]
"""Where torch computes: `auto` is a GPU if there is one."""
Fraction = Annotated[float, Field(ge=0, le=1)]
"""A number from 0 to 1, both included."""
Positive = Annotated[int, Field(ge=1)]
"""A count of at least 1."""
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""A sha256 in lower-case hexadecimal digits."""


class Section(BaseModel):
    """A section of params.yaml: unknown keys are refused, values are immutable after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_settings(cls, values: Any) -> Any:
        """Refuse unknown names, and true or false where pydantic would take them for 1 and 0."""
        for name, value in values.items() if isinstance(values, dict) else ():
            if name not in cls.model_fields:
                raise fault_at(str(name), unknown("setting", name, cls.model_fields))
            if isinstance(value, bool) and cls.model_fields[name].annotation is not bool:
                raise fault_at(name, f"this setting is no switch: expected another value, got {str(value).lower()}")
        return values


def only_defaults(section: Section, names: Iterable[str], why: str, advice: str = "", place: str = "solve") -> None:
    """Raise a `fault_at` for the first of `names` in a section whose value is not the default.

    why: the reason for which the setting would change nothing; advice: what else the user can do.
    place: of the section, relative to the validated one; empty: that one.
    """
    for name in names:
        value, plain = getattr(section, name), type(section).model_fields[name].get_default(call_default_factory=True)
        if value != plain:
            raise fault_at(
                f"{place}.{name}".lstrip("."), f"{why}: expected {_shown(plain)}, got {_shown(value)}{advice}"
            )


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return str(list(value) or "none") if isinstance(value, tuple) else str(value)
