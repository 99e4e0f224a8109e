"""Hooks of the site: pages that stand beside `docs/`, and the order of the pages.

The pages are written for a code host, where a link leads from file to file. Those that stand
outside of this folder become pages of the site, and links to them are turned that way. The order is
that of `index.md`, so that no list of pages is kept twice.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "project.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
    "protocol/README.md": "protocol.md",
}
"""Pages outside of `docs/`, by their path in the repository, and their place in the site."""

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill each folder of the navigation in the order of the index."""
    listed = re.findall(r"\]\(([^)#]+\.md)\)", (ROOT / "docs" / "index.md").read_text("utf-8"))
    for part in config.nav or []:
        for title, pages in part.items():
            if isinstance(pages, str) and "." not in pages:
                part[title] = [page for page in listed if page.startswith(f"{pages}/")]
                if pages == "reference":
                    part[title] += ["protocol.md", "figures.md"]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of the folder."""
    for source, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn the links of a page to where their targets stand in the site."""
    place = page.file.src_uri
    source = next((one for one, at in OUTSIDE.items() if at == place), f"docs/{place}")
    up = "../" * place.count("/")

    def turned(match: re.Match[str]) -> str:
        text, path, anchor = match.groups(default="")
        target = str(((ROOT / source).parent / path).resolve().relative_to(ROOT))
        if target not in OUTSIDE and not target.startswith("docs/"):
            return text  # a file of the repository that is no page
        return f"[{text}]({up}{OUTSIDE.get(target, target.removeprefix('docs/'))}{anchor})"

    parts = _FENCED.split(markdown)
    return "".join(part if n % 2 else _LINK.sub(turned, part) for n, part in enumerate(parts))
