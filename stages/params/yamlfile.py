"""Reads and writes YAML 1.2 as DVC does: `2:4` and `on` are strings, `1e-3` is a number."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from stages.errors import ParameterError


def read_yaml(path: Path) -> Any:
    """The value of a YAML file's one document; None where it is empty.

    Raises OSError, and ParameterError with the line and column of what cannot be read.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        place = f"byte 0x{error.object[error.start]:02x} in line {line}"
        raise ParameterError(f"{path} is not UTF-8: {place}: save the file as UTF-8") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> Any:
    """The value of a YAML document; raises ParameterError, which calls the document `name`."""
    try:
        # DVC's own choice of loader, so that templates of dvc.yaml and stages never read another value.
        return YAML(typ="safe").load(text)
    except YAMLError as error:
        raise ParameterError(f"{name} is not YAML: {_described(error, text)}") from None
    except (KeyError, ValueError) as error:  # of numbers, switches and dates that cannot be made
        raise ParameterError(f"{name} is not YAML: {error}: put strings in quotes") from None


def yaml_text(values: Any) -> str:
    """`values` as a YAML 1.2 document, which `read_yaml` and DVC read back as they are."""
    stream, writer = io.StringIO(), YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.dump(values, stream)
    return stream.getvalue()


def _described(error: YAMLError, text: str) -> str:
    """Line, column and problem, without the excerpts that the library's message draws."""
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark = error.problem_mark
    problem = ", ".join(" ".join(part.split()) for part in (error.context, error.problem) if part)
    line, hint = ([*text.splitlines(), ""])[mark.line], ""
    if "\t" in line:
        hint = " (there is a tab: YAML is indented by spaces)"
    elif "unexpected ':'" in problem:
        hint = ' (in braces a value with a colon stands in quotes: "2:4")'
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}{hint}"
