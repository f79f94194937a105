"""Structured solutions made by hand: random heads and channels kept, kept weights moved, biases where asked."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from stages.artifacts.linears import LINEARS
from stages.artifacts.manifest import identity_of, write_manifest
from stages.artifacts.places import block_file
from stages.artifacts.solution import read_rows, write_block
from stages.assembly.checkpoint import layout_of, write_checkpoint
from stages.models.export import fresh
from stages.models.loading.load import load_model
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import units_of
from stages.walk.pruned import Pruned

COLUMNS = {
    "method": "hand", "pattern": "unstructured", "scope": "model", "relative_error": 0.0, "damping": None,
    "attempts": None, "refits": True, "refit": "none", "correction": None, "correction_ridge": None,
}  # fmt: skip


def row_of(linear, keep):
    weights, kept = keep.numel(), int(keep.sum())
    return {
        "linear": linear.name, "block": linear.block, "role": linear.role, "weights": weights, "kept": kept,
        "sparsity": 1 - kept / weights, **COLUMNS,
    }  # fmt: skip


def random_keep(counts, generator):
    """At least one of `counts` units."""
    keep = torch.rand(counts, generator=generator) < 0.6
    keep[int(torch.randint(counts, (1,), generator=generator))] = True
    return keep


def write_structured(model: StreamedModel, folder: Path, equal=False, heads=True, biases=(), seed=0) -> Pruned:
    """A solution in `folder`, as the solve stage leaves it.

    equal: as many units of a kind in every block; heads: whether heads go too; biases: roles that get new ones.
    """
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for index in range(model.blocks):
        units, masks, linears = {}, {}, {linear.name: linear for linear in model.linears(index)}
        for one in units_of(model, index):
            keep = random_keep(one.count, generator)
            if one.kind == "heads" and not heads:
                keep = torch.ones(one.count, dtype=torch.bool)
            if equal:
                count = counts.setdefault(one.kind, int(keep.sum()))
                keep = torch.zeros(one.count, dtype=torch.bool)
                keep[torch.randperm(one.count, generator=generator)[:count]] = True
            units[one.kind] = keep
            masks[one.sink.name] = one.kept_columns(keep).expand(one.sink.shape)
            for linear, rows in one.kept_rows(keep).items():
                masks[linear.name] = rows[:, None].expand(linear.shape)
        solved, new = [], {}
        for name, linear in linears.items():
            keep = masks[name].contiguous()
            kept = model.weights.stored(linear)[keep]
            solved.append((row_of(linear, keep), keep, kept + 0.02 * torch.randn(kept.shape, generator=generator)))
            if linear.role in biases:
                new[name] = 0.3 * torch.randn(linear.shape[0], generator=generator)
        write_block(folder / block_file(index), solved, units, new)
    paths = [folder / block_file(index) for index in range(model.blocks)]
    rows = [row for path in paths for row in read_rows(path)]
    LINEARS.write(folder, rows)
    facts = {"model": identity_of(model.checkpoint.folder), "solve": {}, "settings": {}, "calibration": {}}
    write_manifest(folder, facts)
    return Pruned(model, paths, {row["linear"]: row for row in rows})


def made(folder, wanted, **solution):
    """A solution of the model in `folder`/model, the layout it got, and the folder of its checkpoint."""
    model = StreamedModel(folder / "model", torch.device("cpu"))
    pruned = write_structured(model, folder / "solution", **solution)
    layout = layout_of(pruned, wanted, False)
    target = folder / f"out_{wanted}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    write_checkpoint(folder / "model", target, pruned, layout, lambda done: None)
    return pruned, layout, target


def masked(pruned):
    """The whole dense model with the solution's weights and biases."""
    model = AutoModelForCausalLM.from_pretrained(pruned.model.checkpoint.folder).eval()
    for index in range(pruned.model.blocks):
        for name, tensor in pruned.block(index).items():
            module, _, kind = name.rpartition(".")
            setattr(model.get_submodule(module), kind, torch.nn.Parameter(tensor.to(model.dtype)))
    return model


def text_of(model, tokens, **options):
    return model.generate(tokens, max_new_tokens=6, do_sample=False, eos_token_id=None, **options)


def answering(logits=lambda logits: logits, last=lambda token: token):
    """What the fresh process would answer, without the process: with other logits, or another last token."""

    def answers(jobs):
        found = []
        for job in jobs:
            model = load_model(Path(job.folder))
            sequence = model.generate(torch.tensor([job.tokens]), max_new_tokens=job.new_tokens, do_sample=False)
            sequence[0, -1] = last(sequence[0, -1])
            with torch.no_grad():
                found.append(fresh.Answer(sequence[0].tolist(), logits(model(sequence).logits[0])))
        return found

    return answers
