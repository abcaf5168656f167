"""The hook of the site: pages that are made from something else, and navigation by folder.

- README.md is the front page, CONTRIBUTING.md and CHANGELOG.md are pages; links to files outside docs/ become text.
- Every selector and method of the registry has a page, which begins with its card (`entry_cards`).
- Every script in examples/ has a page with its code and what it prints (`gallery`).
- The reference has one page per package of the front door, one entry per exported name, from its docstring. A public
  name without one ends the build (`public_names`).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]

import entry_cards  # noqa: E402
import gallery  # noqa: E402
import public_names  # noqa: E402

from fedcohort.registry.catalogue import ENTRIES  # noqa: E402

PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
SOURCE = re.compile(r'<(?:img|source)[^>]*?(?:src|srcset)="docs/')
ASKS = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\ssrc(?:set)?=["'](https?:[^"']+)|<link\b[^>]*?\shref=["'](https?:[^"']+)"""
)
OUTSIDE = re.compile(r"\]\(\.\./((?:\.\./)*)examples/(\w+)\.py\)")
CARDS = {f"{entry.kind}s/{entry.name}.md": entry for entry in ENTRIES}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a folder where the navigation says {pages: "folder/*"}; nothing undocumented gets through."""
    missing = public_names.undocumented()
    if missing:
        raise PluginError(f"public names without a docstring: {', '.join(missing)}")
    config.nav = [_with_pages(section) for section in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from something else."""
    made = {target: _relinked((ROOT / source).read_text("utf-8")) for source, target in PAGES.items()}
    made |= {f"reference/{package}.md": text for package, text in references().items()}
    made |= gallery.pages()
    for place, entry in CARDS.items():
        if not (ROOT / "docs" / place).exists():
            made[place] = entry_cards.generated_page(entry.kind, entry.name)
    made |= gallery.attachments()
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The card of a selector or method; links to scripts and to CONTRIBUTING.md lead to their pages."""
    entry = CARDS.get(page.file.src_uri)
    text = entry_cards.with_card(entry.kind, entry.name, markdown) if entry else markdown
    for source, target in list(PAGES.items())[1:]:
        text = text.replace(f"../{source})", f"{target})")
    return OUTSIDE.sub(r"](\1examples/\2.md)", text)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Whoever reads the site asks no other machine for anything."""
    asked = ["".join(found) for found in ASKS.findall(output)]
    if asked:
        raise PluginError(f"{page.file.src_uri} would load {', '.join(sorted(set(asked)))} from another machine")
    return output


def references() -> dict[str, str]:
    """Package -> its page of the reference."""
    out: dict[str, str] = {}
    seen: dict[str, str] = {}  # what an earlier package exports, too, is described there
    for package in public_names.packages():
        whole = {name: f"{home}.{name}" for name, home in public_names.exported(package).items()}
        again = [f"[`{name}`][{path}]" for name, path in whole.items() if path in seen]
        entries = [f"::: {path}" for path in whole.values() if path not in seen]
        seen |= dict.fromkeys(whole.values(), package)
        also = [f"Described elsewhere: {', '.join(again)}."] if again else []
        use = f"```python\nfrom {package} import {', '.join(list(whole)[:3])}\n```"
        out[package] = "\n\n".join([f"# {package}", public_names.about(package), use, *also, *entries]) + "\n"
    return out


def _with_pages(section: Any) -> Any:
    if not isinstance(section, dict):
        return section
    (title, pages), *_ = section.items()
    if not isinstance(pages, list):
        return section
    out: list[Any] = []
    for page in pages:
        folder = page.get("pages") if isinstance(page, dict) else None
        out += _pages_of(folder.removesuffix("/*")) if folder else [_with_pages(page)]
    return {title: out}


def _pages_of(folder: str) -> list[Any]:
    """Reference and examples in their own order; selectors and methods by family, the rest behind them."""
    if folder == "reference":
        return [{package: f"reference/{package}.md"} for package in public_names.packages()]
    if folder == "examples":
        return [{title: place} for place, title in gallery.titles().items()]
    families: dict[str, list[Any]] = {}
    for place, entry in CARDS.items():
        if place.startswith(f"{folder}/"):
            families.setdefault(entry.family.capitalize(), []).append({entry.name: place})
    known = {f"{folder}/README.md", *CARDS}
    rest = sorted(p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs" / folder).glob("*.md"))
    others: list[Any] = [place for place in rest if place not in known]
    return [*({family: pages} for family, pages in families.items()), *({"More": others} for _ in others[:1])]


def _relinked(text: str) -> str:
    """Links of a page in the root: into docs/ they stay links, elsewhere they become text."""

    def there(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        if target == "examples":
            return f"[{words}](examples/index.md)"
        if target in PAGES:
            return f"[{words}]({PAGES[target]}{anchor})"
        if target.startswith("docs/") and target.endswith((".md", ".svg", ".png")):
            return f"[{words}]({target.removeprefix('docs/')}{anchor})"
        return match[0] if "://" in target else words

    return SOURCE.sub(lambda match: match[0].removesuffix("docs/"), LINK.sub(there, text))
