"""Tasks of lm-eval: names, files and data that cannot be used; metrics that are not there."""

from __future__ import annotations

from tests.bad_input.case import Change, append, bad, edit, good, remove, write

EVALUATE = "stages.evaluate dense"
TOPICS = "tasks/topics.yaml"
ON = edit("names: []", "names: [topics]")


def task(old: str, new: str) -> tuple[Change, ...]:
    """The task is asked for, its file says otherwise."""
    return ON, edit(old, new, TOPICS)


CASES = [
    bad("an unknown task", EVALUATE, edit("names: []", "names: [topic]"),
        r"evaluate\.tasks\.names: unknown task 'topic': expected one of .*topics"),
    bad("a task of lm-eval's without its index", EVALUATE, edit("names: []", "names: [arc_easy]"),
        r"unknown task 'arc_easy'", r"evaluate\.tasks\.defaults: true"),
    bad("names that are a word", EVALUATE, edit("names: []", "names: topics"),
        r"evaluate\.tasks\.names: .*got 'topics'"),
    bad("a folder of tasks that is not there", EVALUATE, (edit("names: []", "names: [topics], include: task")),
        r"evaluate\.tasks\.include: task is no folder: give the folder of your YAML tasks, or null"),
    bad("an unknown metric", EVALUATE, task("metric: acc\n", "metric: accuracy_of_topics\n"), r"evaluate\.tasks|topics",
        "accuracy_of_topics"),
    bad("an unknown aggregation", EVALUATE, task("aggregation: mean", "aggregation: average_of_all"),
        r"evaluate\.tasks|topics", "average_of_all"),
    bad("an unknown kind of output", EVALUATE, task("output_type: multiple_choice", "output_type: choices"),
        r"evaluate\.tasks|topics", "choices"),
    bad("a task that is not YAML", EVALUATE, (ON, append(TOPICS, "  : [\n")), r"tasks"),
    bad("a task without data", EVALUATE, task("evaluation_documents.parquet", "none.parquet"),
        r"the data of evaluate\.tasks cannot be had: .*none\.parquet", "data_files"),
    bad("data that fetch did not write", EVALUATE, (ON, remove("data/texts/evaluation_documents.parquet")),
        r"the data of evaluate\.tasks cannot be had", "fetch"),
    bad("a split that is not there", EVALUATE, task("test_split: test", "test_split: validation"),
        r"evaluate\.tasks|topics", "validation"),
    bad("a label that the task has not", EVALUATE, task("'b': 1}[label]", "'c': 1}[label]"),
        r"evaluate\.tasks\.names: a document does not fit its task \(topics\)", "name tasks made for this text"),
    bad("a field that documents have not", EVALUATE, task("{{ text }}", "{{ article[:9] }}"),
        r"evaluate\.tasks\.names: a document does not fit its task \(topics\).*article"),
    bad("data that is no Parquet", EVALUATE, (ON, edit("data/texts/evaluation_documents.parquet", "tasks/a.parquet",
        TOPICS), write("tasks/a.parquet", "PAR1 and no more")), r"evaluate\.tasks"),
    bad("a negative number of shots", EVALUATE, edit("limit: 4", "limit: 4, fewshot: -1"),
        r"evaluate\.tasks\.fewshot: .*got -1"),
    bad("more shots than documents", EVALUATE, (ON, edit("limit: 4", "limit: 4, fewshot: 500")), r"evaluate\.tasks"),
    bad("no documents", EVALUATE, edit("limit: 4", "limit: 0"), r"evaluate\.tasks\.limit: .*got 0"),
    bad("no batch", EVALUATE, edit("limit: 4", "limit: 4, batch_size: 0"), r"evaluate\.tasks\.batch_size: .*got 0"),
    bad("prompts longer than is allowed", EVALUATE, (ON, edit("max_length: 32", "max_length: 8")),
        r"evaluate\.tasks\.max_length", r"\b8\b"),
    good("a task of one's own", EVALUATE, ON),
]  # fmt: skip
