"""What the site needs beyond the pages in docs/: a front page, the API reference, and navigation by folder.

The front page is README.md, and CONTRIBUTING.md and CHANGELOG.md become pages; links to files outside docs/ become
plain text. The reference has one page per package of the front door, one entry per exported name, from its docstring.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a folder where the navigation says {pages: "folder/*"}."""
    config.nav = [_with_pages(section) for section in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from something else."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=_relinked((ROOT / source).read_text("utf-8"))))
    for package, text in references().items():
        files.append(File.generated(config, f"reference/{package}.md", content=text))
    return files


def references() -> dict[str, str]:
    """Package -> its page of the reference."""
    sys.path.insert(0, str(ROOT / "src"))
    from fedcohort.core.lazy import declared

    out: dict[str, str] = {}
    seen: dict[str, str] = {}  # what an earlier package exports, too, is described there
    for package in packages():
        names = sorted(declared(package).items(), key=lambda item: item[0].lower())
        whole = {name: f"{home}.{name}" for name, home in names}
        again = [f"[`{name}`][{path}]" for name, path in whole.items() if path in seen]
        entries = [f"::: {path}" for path in whole.values() if path not in seen]
        seen |= dict.fromkeys(whole.values(), package)
        also = [f"Described elsewhere: {', '.join(again)}."] if again else []
        out[package] = "\n\n".join([f"# {package}", f"`from {package} import ...`", *also, *entries]) + "\n"
    return out


def packages() -> list[str]:
    """The packages of the front door, as docs/api.md heads its sections."""
    return re.findall(r"^## (fedcohort[\w.]*)$", (ROOT / "docs" / "api.md").read_text("utf-8"), re.MULTILINE)


def _with_pages(section: Any) -> Any:
    if not isinstance(section, dict):
        return section
    (title, pages), *_ = section.items()
    if not isinstance(pages, list):
        return section
    out: list[Any] = []
    for page in pages:
        folder = page.get("pages") if isinstance(page, dict) else None
        out += _pages_of(folder.removesuffix("/*")) if folder else [page]
    return {title: out}


def _pages_of(folder: str) -> list[Any]:
    if folder == "reference":
        return [{package: f"reference/{package}.md"} for package in packages()]
    found = sorted((ROOT / "docs" / folder).glob("*.md"))
    return [{page.stem: f"{folder}/{page.name}"} for page in found if page.name != "README.md"]


def _relinked(text: str) -> str:
    """Links of a page in the root: into docs/ they stay links, elsewhere they become text."""

    def there(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        if target in PAGES:
            return f"[{words}]({PAGES[target]}{anchor})"
        if target.startswith("docs/") and target.endswith((".md", ".svg", ".png")):
            return f"[{words}]({target.removeprefix('docs/')}{anchor})"
        return match[0] if "://" in target else words

    return LINK.sub(there, text)
