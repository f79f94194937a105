"""What every section of params.yaml is made of."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

DType = Literal["auto", "float32", "bfloat16", "float16"]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Section(BaseModel):
    """A part of params.yaml: unknown keys are refused, values never change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
