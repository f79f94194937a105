"""params.yaml as typed sections (pydantic), checked as a whole when it is read; may import methods, models, linalg."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from stages.errors import ParameterError, unknown
from stages.methods import registry
from stages.params.amounts import check_amounts
from stages.params.base import Device, DType, Positive, Section
from stages.params.effects import check_effects
from stages.params.evaluating import Evaluate
from stages.params.faults import fault_at, first_fault
from stages.params.fetching import Fetch
from stages.params.pruning import Solve
from stages.params.yamlfile import read_yaml

PATH = Path("params.yaml")
"""Where stages read parameters, from the project's folder."""


class Compute(Section):
    """compute: device and dtype of the model in every stage that runs it."""

    device: Device = "auto"
    """auto: a GPU if there is one."""
    dtype: DType = "auto"
    """Of weights and hidden states in forwards; auto: the checkpoint's own."""
    chunk: Positive = 4
    """Sequences in a forward: sets peak memory."""


class Calibration(Section):
    """calibration: the windows of the calibration text that statistics are taken on."""

    sequences: Positive
    """Number of windows."""
    length: Annotated[int, Field(ge=2)]
    """Tokens of each."""
    seed: int = 0
    """Of the windows' places in the text."""


class Extract(Section):
    """extract: how hidden states are stored."""

    format: Literal["safetensors", "parquet"] = "safetensors"
    """Of the files of data/activations, one a block."""
    dtype: DType = "auto"
    """Of stored states; auto: compute.dtype."""


class Statistics(Section):
    """statistics: how Gram matrices are summed."""

    dtype: Literal["float32", "float64"] = "float32"
    """Of sums and of the solvers that read them, whatever the model's dtype is."""


class Assemble(Section):
    """assemble: the layout of the pruned checkpoint, and the check that it must pass."""

    layout: Literal["auto", "hetero", "uniform", "padded"] = "auto"
    """Of a checkpoint without the heads and channels that were removed; auto: the smallest that can be had."""
    max_logit_difference: Annotated[float, Field(ge=0)] = 1e-3
    """Largest difference allowed between the reloaded checkpoint's logits and the walk's."""


class Store(Section):
    """store: the size of the block store."""

    limit_gb: Annotated[float, Field(gt=0)] = 20.0
    """GB (1e9 bytes) of .cache/blocks above which the blocks used longest ago are dropped."""


class Workers(Section):
    """workers: threads or Dask processes for blocks that do not need each other (statistics; solve on dense inputs).

    Not tracked by DVC: results do not depend on it.
    """

    runner: Literal["threads", "dask"] = "threads"
    """threads of one process, or the workers of a Dask cluster."""
    count: Positive = 1
    """Threads, or processes of a local Dask cluster; each holds a block of its own."""
    held_gb: Annotated[float, Field(ge=0)] = 2.0
    """GB of memory for forwards that wait while linears are solved (walk: ordered, target: corrected); what does not
    fit is run again for each input of a block."""
    address: str | None = None
    """Scheduler of a Dask cluster that is already there (tcp://host:8786), which sees this folder."""

    @model_validator(mode="after")
    def _address_of_dask(self) -> Workers:
        if self.address is not None and self.runner != "dask":
            raise ValueError(f"address {self.address!r} is a Dask scheduler's: set runner to dask, or take it out")
        if self.address is not None and self.count != 1:
            raise fault_at("count", f"the cluster at {self.address} has its own workers: expected 1, got {self.count}")
        return self


class Params(Section):
    """All sections of params.yaml; `read` makes one from the file."""

    compute: Compute = Compute()
    fetch: Fetch
    calibration: Calibration
    extract: Extract = Extract()
    statistics: Statistics = Statistics()
    solve: Solve
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of each method by its name; those of solve.method are read (methods/registry.py)."""
    assemble: Assemble = Assemble()
    evaluate: Evaluate = Evaluate()
    store: Store = Store()
    workers: Workers = Workers()

    @model_validator(mode="after")
    def _agrees(self) -> Params:
        """Refuse unknown methods, settings without effect, and sparsities that contradict patterns."""
        known = registry.names()
        given = {f"solve.rules[{number}].method": rule.method for number, rule in enumerate(self.solve.rules)}
        given |= {"solve.method": self.solve.method} | {f"methods.{name}": name for name in self.methods}
        for place, name in given.items():
            if name is not None and name not in known:
                raise fault_at(place, unknown("method", name, known))
        check_effects(self.solve)
        check_amounts(self.solve)
        return self


def read(path: Path = PATH) -> Params:
    """The checked parameters in `path`; raises ParameterError with one line that names the place."""
    try:
        values = read_yaml(path)
    except FileNotFoundError:
        raise ParameterError(f"{path} is not in {Path.cwd()}: run stages from the project's folder") from None
    except OSError as error:
        raise ParameterError(f"{path} cannot be read ({error.strerror}): expected a file of parameters") from None
    if not isinstance(values, dict):
        kind = {type(None): "an empty file", list: "a list"}.get(type(values), repr(values))
        raise ParameterError(f"{path}: expected the sections {', '.join(Params.model_fields)}, got {kind}")
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        raise ParameterError(f"{path}: {first_fault(error, values)}") from None
