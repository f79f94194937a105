"""Tasks by lm-eval's Python API: official ones by name, or YAML files in the project's own folder."""

from __future__ import annotations

import contextlib
import difflib
import io
import logging
import math
import sys
from collections.abc import Iterator
from typing import Any

import jinja2

from stages.errors import NotFiniteError, ParameterError, SourceError
from stages.params.evaluating import Tasks

BOOTSTRAP = 1000
"""Resamplings for the standard error of metrics that have no formula for it (accuracy has one)."""


def accuracies(model: Any, tokenizer: Any, settings: Tasks) -> dict[str, dict[str, float]]:
    """Every metric of every task as plain numbers: {task: {acc, acc_stderr, n}}.

    The first `settings.limit` documents of each task, log likelihoods of the answers, no chat
    template. Raises ParameterError for a task that is not there or does not fit its documents,
    SourceError for data that cannot be had.
    """
    if not settings.names:
        return {}
    # Imported here: it takes seconds, and a run without tasks need not wait for it.
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    with _quiet():
        manager = _manager(settings)
        harness = HFLM(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=settings.batch_size,
            max_length=settings.max_length,
        )
        with _explained(settings):
            results = lm_eval.simple_evaluate(
                model=harness,
                tasks=list(settings.names),
                task_manager=manager,
                num_fewshot=settings.fewshot,
                limit=settings.limit,
                bootstrap_iters=BOOTSTRAP,
                log_samples=False,
                random_seed=settings.seed,
                numpy_random_seed=settings.seed,
                torch_random_seed=settings.seed,
                fewshot_random_seed=settings.seed,
            )
    return flattened(results)


def flattened(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """lm-eval's results with `acc,none` as `acc`, counts as `n`, and nothing that is not a number.

    Raises NotFiniteError for a metric that is NaN or infinite; a standard error that is (one
    document) is left out.
    """
    table = {}
    for task, metrics in results["results"].items():
        row = {}
        for key, value in metrics.items():
            metric, _, choice = key.partition(",")
            if choice and isinstance(value, int | float):
                name = metric if choice == "none" else f"{metric}_{choice}".replace("-", "_")
                if math.isfinite(value):
                    row[name] = value
                elif not metric.endswith("_stderr"):
                    raise NotFiniteError(f"{name} of task {task} is {value}: the model's answers are no numbers")
        if task in results.get("n-samples", {}):
            row["n"] = results["n-samples"][task]["effective"]
        table[task] = row
    return table


def _manager(settings: Tasks) -> Any:
    """lm-eval's index of the tasks there are; raises ParameterError for a name it does not know."""
    from lm_eval.tasks import TaskManager

    if settings.include is not None and not settings.include.is_dir():
        raise ParameterError(
            f"evaluate.tasks.include: {settings.include} is no folder: give the folder of your YAML tasks, or null"
        )
    manager = TaskManager(
        include_path=None if settings.include is None else str(settings.include),
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
    """Turn what lm-eval and datasets raise for data they cannot have or read into one line."""
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Warnings only of what matters; lm-eval's bars are shown to a person, not to a log file."""
    for name in ("lm_eval", "lm-eval", "datasets", "evaluate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    target = sys.stderr if sys.stderr.isatty() else io.StringIO()
    with contextlib.redirect_stderr(target):
        yield
