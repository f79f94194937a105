"""Evaluates lm-eval tasks by its Python API: official ones by name, or YAML files in the project's own folder."""

from __future__ import annotations

import contextlib
import difflib
import logging
import random
import re
from collections.abc import Iterator
from typing import Any

import jinja2
import numpy as np
import torch

from stages.artifacts.places import from_project
from stages.errors import ParameterError, SourceError
from stages.measuring.quality.harness_log import harness_warnings
from stages.measuring.quality.prompts import CutPrompts
from stages.measuring.quality.task_figures import task_rows
from stages.params.evaluating import Tasks

BOOTSTRAP = 1000
"""Resamplings for the standard error of metrics that have no formula for it (accuracy has one)."""
NOT_AS_EXPECTED = (LookupError, ValueError, TypeError, AttributeError, AssertionError, re.error)
"""Exceptions of a task's own templates, filters and metrics; a model that fails raises RuntimeError."""

log = logging.getLogger("secateur")


def evaluate_tasks(model: Any, tokenizer: Any, settings: Tasks) -> tuple[dict[str, dict[str, float]], int | None]:
    """The metrics of every task as plain numbers, and the longest input in tokens (None without tasks).

    {task: {acc, acc_stderr, n, fewshot, truncated, tokens_cut}}: n documents, the number of examples before each,
    how many of the prompts were cut from the left to the longest input, and the tokens lost by that.

    The first `settings.limit` documents of each task, log likelihoods of the answers, no chat
    template. Raises ParameterError for a task that is not there, does not fit its documents or the model's
    input, or gives no metric or a wrong one; SourceError for data that cannot be had.
    """
    if not settings.names:
        return {}, None
    # Imported here: it takes seconds, and a run without tasks need not wait for it.
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # HFLM warns that a loaded model is given, as it should be
    harness = HFLM(
        pretrained=model, tokenizer=tokenizer, batch_size=settings.batch_size, max_length=settings.max_length
    )
    cuts = CutPrompts(harness)
    with harness_warnings() as warnings:
        loaded = _loaded(settings)
        warnings.refuse_errors()
        _seed(settings.seed)
        with _explained(settings):
            results = lm_eval.evaluate(
                harness, loaded, limit=settings.limit, bootstrap_iters=BOOTSTRAP, log_samples=False
            )
        warnings.refuse_errors()
    for line in cuts.in_words():
        log.warning("%s", line)
    return task_rows(results, loaded["tasks"], cuts.by_task), harness.max_length


def _loaded(settings: Tasks) -> dict[str, Any]:
    """lm-eval's tasks and groups, with the number of examples and the seed of the settings."""
    manager = _manager(settings)
    with _explained(settings):
        loaded: dict[str, Any] = manager.load(list(settings.names))
    for name, task in loaded["tasks"].items():
        _prepare(name, task, settings)
    return loaded


def _prepare(name: str, task: Any, settings: Tasks) -> None:
    """Set a task's number of examples; raises ParameterError where the task does not allow it or is no whole one."""
    own, wanted = task.get_config("num_fewshot"), settings.fewshot
    if wanted and own == 0:
        raise ParameterError(
            f"evaluate.tasks.fewshot: task {name} says that it takes no examples (num_fewshot: 0), got {wanted}: "
            "set it to null, each task's own number, or to 0"
        )
    task.set_config(key="num_fewshot", value=(own or 0) if wanted is None else wanted)
    task.set_fewshot_seed(seed=settings.seed)
    for metric, aggregation in task.aggregation().items():
        if aggregation is None:
            got = [each.get("aggregation") for each in task.get_config("metric_list") if each["metric"] == metric]
            raise ParameterError(
                f"evaluate.tasks.names: task {name}: expected an aggregation of {metric} that lm-eval knows (mean, "
                f"median, perplexity, ...), got {', '.join(map(str, got))}: correct its metric_list"
            )


def _seed(seed: int) -> None:
    """Generated answers are drawn by torch's generator, bootstrapped errors by Python's and NumPy's."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _manager(settings: Tasks) -> Any:
    """lm-eval's index of the tasks there are; raises ParameterError for a name it does not know."""
    from lm_eval.tasks import TaskManager

    include = None if settings.include is None else from_project(settings.include)
    if include is not None and not include.is_dir():
        raise ParameterError(
            f"evaluate.tasks.include: {include} is no folder: give the folder of your YAML tasks, or null"
        )
    manager = TaskManager(
        include_path=None if include is None else str(include),
        include_defaults=settings.defaults,
    )
    for name in settings.names:
        if name not in manager.all_tasks:
            near = manager.all_tasks
            if len(near) > 20:
                near = difflib.get_close_matches(name, near, n=5) or near[:5]
            advice = "" if settings.defaults else " (lm-eval's own tasks need evaluate.tasks.defaults: true)"
            raise ParameterError(
                f"evaluate.tasks.names: unknown task {name!r}: expected one of {', '.join(near) or 'none'}{advice}"
            )
    return manager


@contextlib.contextmanager
def _explained(settings: Tasks) -> Iterator[None]:
    """Turn what lm-eval, datasets and a task's own YAML raise into one line."""
    try:
        yield
    except ConnectionError as error:
        raise SourceError(
            f"the data of evaluate.tasks cannot be had: {error}: connect to the Hugging Face hub once, or name "
            "tasks with local data (evaluate.tasks.include), or set evaluate.tasks.names to []"
        ) from error
    except FileNotFoundError as error:
        raise SourceError(
            f"the data of evaluate.tasks cannot be had: {error}: run stages from the project's folder after fetch, "
            "and see the data_files of the task"
        ) from error
    except jinja2.TemplateError as error:
        raise ParameterError(
            f"evaluate.tasks.names: a document does not fit its task ({', '.join(settings.names)}): {error}: name "
            "tasks made for this text, or set it to []"
        ) from error
    except NOT_AS_EXPECTED as error:
        raise ParameterError(
            f"evaluate.tasks.names: a template, filter or metric of {', '.join(settings.names)} does not work: "
            f"{type(error).__name__}: {error}: put the task's YAML file right, or leave the task out"
        ) from error
