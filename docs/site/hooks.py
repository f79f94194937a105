"""MkDocs hooks: pages from top-level files, an API reference page for each package, and links that hold on the site.

Pages are written with links that work in a checkout (`../experiments/maiht/results/figure.png`); each is translated to
where that file is on the site. A link to a file that is not there is a warning, hence an error in `make docs`.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LOG = logging.getLogger("mkdocs.hooks.secateur")
ROOT = Path(__file__).parents[2]
TOP_LEVEL = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LICENSE = {"LICENSE": "license.txt"}
LINK = re.compile(r"(\]\()((?!https?:|mailto:|#)[^)#\s]+)([^)]*\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the API reference to the navigation, rooms in the order of import-linter's layers."""
    pages: list[Any] = [{package.removeprefix("stages."): _reference(package)} for package in _packages()]
    assert config.nav is not None
    config.nav.append({"API reference": pages})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the top-level files, the experiments' figures and the API reference."""
    for source, target in (TOP_LEVEL | LICENSE).items():
        content = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=content))
    for figure in sorted(ROOT.glob("experiments/*/results/*")):
        if figure.suffix in {".png", ".svg"}:
            target = str(_on_site(figure.relative_to(ROOT)))
            files.append(File.generated(config, target, abs_src_path=str(figure)))
    for package in _packages():
        files.append(File.generated(config, _reference(package), content=_reference_page(package)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translate relative links of a page from the checkout to the site."""
    place = page.file.src_uri
    source = next((name for name, target in TOP_LEVEL.items() if target == place), f"docs/{place}")

    def translated(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        target = Path(os.path.normpath(Path(source).parent / link))
        on_site = _on_site(target)
        if on_site is None:
            LOG.warning("%s links to %s, which is not on the site", source, target)
            return match.group()
        return f"{before}{Path(os.path.relpath(on_site, Path(place).parent)).as_posix()}{after}"

    return markdown if place.startswith("reference/") else LINK.sub(translated, markdown)


def _on_site(path: Path) -> Path | None:
    """Where a file of the checkout is on the site; None if it is not there."""
    if (known := (TOP_LEVEL | LICENSE).get(path.as_posix())) is not None:
        return Path(known)
    if path.parts[0] == "docs":
        return Path(*path.parts[1:])
    if path.match("experiments/*/results/*"):
        return Path("figures", path.parts[1], path.name)
    return None


def _packages() -> list[str]:
    """Packages with a page each: flows, stages, then the rooms and the packages in them, from the top layer."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    rooms = [f"stages.{room}" for layer in layers for room in layer.split(" | ")]
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "stages").rglob("*/__init__.py")}
    inner = [package for room in rooms for package in sorted(found) if f"{package}.".startswith(f"{room}.")]
    return ["flows", "stages", *inner]


def _reference(package: str) -> str:
    return f"reference/{package}.md"


def _reference_page(package: str) -> str:
    """Markdown of a package's page: its own docstring, then each of its modules."""
    modules = sorted(path.stem for path in ROOT.joinpath(*package.split(".")).glob("[!_]*.py"))
    parts = [f"::: {package}\n    options: {{heading_level: 1}}"]
    parts += [f"::: {package}.{module}\n    options: {{heading_level: 2}}" for module in modules]
    return "\n\n".join(parts) + "\n"
