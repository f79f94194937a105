"""Counts, by task, the prompts that lm-eval cuts because they are longer than the model's input."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stages.errors import ParameterError


class CutPrompts:
    """Watches lm-eval's requests to a model (HFLM) and counts the prompts that are cut from the left.

    by_task: {task: {document: tokens lost}}, the most of a document's requests. Rolling log likelihoods are
    not counted: they split a text into windows and lose nothing.
    """

    def __init__(self, harness: Any) -> None:
        self.by_task: dict[str, dict[int, int]] = {}
        self._documents: dict[str, set[int]] = defaultdict(set)
        self._longest: int = harness.max_length
        self._watch_likelihoods(harness)
        self._watch_generation(harness)

    def in_words(self) -> Iterator[str]:
        """A line for each task of which prompts were cut."""
        for task, cut in self.by_task.items():
            if cut:
                yield (
                    f"{task}: {len(cut)} of {len(self._documents[task])} prompts were cut from the left to "
                    f"{self._longest} tokens (evaluate.tasks.max_length), {sum(cut.values())} tokens lost"
                )

    def _watch_likelihoods(self, harness: Any) -> None:
        likelihoods, of_tokens = harness.loglikelihood, harness._loglikelihood_tokens

        def watched(instances: Sequence[Any], *arguments: Any, **options: Any) -> Any:
            # lm-eval encodes the requests in their order and hands them to this method before the model runs.
            def counted(encoded: Sequence[Any], *arguments: Any, **options: Any) -> Any:
                for instance, (_, context, answer) in zip(instances, encoded, strict=True):
                    if len(answer) > self._longest:
                        raise ParameterError(
                            f"evaluate.tasks.max_length: an answer of task {instance.task_name} has {len(answer)} "
                            f"tokens, expected at most {self._longest}, the longest input: allow more, or leave the "
                            "task out"
                        )
                    # The last token of the answer is predicted, never read.
                    self._count(instance, len(context) + len(answer) - 1 - self._longest)
                self._check(instances)
                return of_tokens(encoded, *arguments, **options)

            harness._loglikelihood_tokens = counted
            try:
                return likelihoods(instances, *arguments, **options)
            finally:
                harness._loglikelihood_tokens = of_tokens

        harness.loglikelihood = watched

    def _watch_generation(self, harness: Any) -> None:
        from lm_eval.models.utils import normalize_gen_kwargs

        generate = harness.generate_until

        def watched(instances: Sequence[Any], *arguments: Any, **options: Any) -> Any:
            for instance in instances:
                prompt, options_of_task = instance.args[:2]
                new = normalize_gen_kwargs(options_of_task, harness.max_gen_toks)["max_gen_toks"]
                if new >= self._longest:
                    raise ParameterError(
                        f"evaluate.tasks.max_length: task {instance.task_name} generates up to {new} tokens (its "
                        f"max_gen_toks), which leaves no room for a prompt in {self._longest}: allow more, or leave "
                        "the task out"
                    )
                self._count(instance, len(harness.tok_encode(prompt)) - (self._longest - new))
            self._check(instances)
            return generate(instances, *arguments, **options)

        harness.generate_until = watched

    def _count(self, instance: Any, lost: int) -> None:
        cut = self.by_task.setdefault(instance.task_name, {})
        self._documents[instance.task_name].add(instance.doc_id)
        if lost > 0:
            cut[instance.doc_id] = max(lost, cut.get(instance.doc_id, 0))

    def _check(self, instances: Iterable[Any]) -> None:
        """Raise ParameterError for a task of which no prompt is whole."""
        for task in dict.fromkeys(instance.task_name for instance in instances):
            cut, count = self.by_task[task], len(self._documents[task])
            if len(cut) == count:
                raise ParameterError(
                    f"evaluate.tasks.max_length: all {count} prompts of task {task} are longer than {self._longest} "
                    f"tokens, by {max(cut.values())} at most: allow more (null: as many as the model was made for), "
                    "lower evaluate.tasks.fewshot, or leave the task out"
                )
