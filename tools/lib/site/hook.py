"""A hook of mkdocs: what the site has beyond docs/, and what makes pages read as they do on the code host.

- Pages made of the code: the commands, the metrics of a service, one page for each module that users import.
- Pages of files outside of docs/ that pages link to, such as examples. They are below repository/.
- Headings have the code host's anchors, because links to them are written for both.
- A list needs no empty line before it.
- A long name in a table may be broken between its parts.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # for the package, and for the modules beside this one

from generated import commands, metrics, python_module  # noqa: E402

MODULES = (
    "sortshuffle",
    "sortshuffle.engine",
    "sortshuffle.partitioner",
    "sortshuffle.errors",
    "sortshuffle.options",
    "sortshuffle.spark.frame.grouped_frame",
    "sortshuffle.spark.frame.frame_reader",
    "sortshuffle.spark.frame.frame_writer",
)
OUTSIDE = "repository/"
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash"}
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)((?:#[^)\s]*)?)(?=\))")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> None:
    config.mdx_configs["toc"]["slugify"] = anchor


def anchor(heading: str, _separator: str) -> str:
    """The name under which the code host shows a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def on_files(files: Files, config: MkDocsConfig) -> None:
    made = {"reference/commands.md": commands(), "reference/metrics.md": metrics()}
    made |= {f"reference/python/{module}.md": python_module(module) for module in MODULES}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    wanted = [target for page in Path(config.docs_dir).rglob("*.md") for target in outside(page)]
    known: set[Path] = set()
    while wanted:
        path = wanted.pop()
        if path not in known:
            known.add(path)
            file = File.generated(config, page_of(path), content=shown(path))
            file.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(file)
            wanted += outside(path) if path.suffix == ".md" else contents(path)


def outside(page: Path) -> list[Path]:
    """What a page links to that is there, but not in docs/."""
    text = FENCED.sub("", page.read_text())
    targets = [(page.parent / path).resolve() for path, _ in LINK.findall(text)]
    in_clone = [each for each in targets if each.is_relative_to(ROOT) and each.exists()]
    return [each for each in in_clone if not each.is_relative_to(ROOT / "docs")]


def contents(path: Path) -> list[Path]:
    """What a directory has, but for caches; of a file nothing."""
    found = path.iterdir() if path.is_dir() else ()
    return sorted(each for each in found if not each.name.startswith(("_", ".")))


def page_of(path: Path) -> str:
    """The page of a file outside of docs/, as the site names its sources."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"{OUTSIDE}{name}/index.md"
    return f"{OUTSIDE}{name}" if path.suffix == ".md" else f"{OUTSIDE}{name}.md"


def shown(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text()
    title = f"# `{path.relative_to(ROOT).as_posix()}`\n\n"
    if path.is_dir():
        links = [
            (each.name, posixpath.relpath(page_of(each), posixpath.dirname(page_of(path))))
            for each in contents(path)
        ]
        return title + "".join(f"* [`{name}`]({link})\n" for name, link in links)
    return f"{title}````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text().rstrip()}\n````\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    name = page.file.src_uri
    source = ROOT / name.removeprefix(OUTSIDE) if name.startswith(OUTSIDE) else ROOT / "docs" / name
    if not source.is_file():  # it was made here
        return markdown
    return beyond_fences(markdown, lambda text: spaced(LINK.sub(partial(leads_to, source, name), text)))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return re.sub(r"(?<=<td><code>)[\w.]+(?=</code>)", breakable, html)


def breakable(name: re.Match[str]) -> str:
    parts = name[0].replace(".", ".<wbr>").replace("spark.<wbr>", "spark.")
    return parts.replace("sortshuffle_service_", "sortshuffle_service_<wbr>")


def leads_to(source: Path, name: str, link: re.Match[str]) -> str:
    """Where a link of a source leads, from the page that the site has of the source."""
    target = (source.parent / link[1]).resolve()
    if not (target.exists() and target.is_relative_to(ROOT)):
        return link[0]  # which mkdocs refuses
    inside = target.is_relative_to(ROOT / "docs")
    page = target.relative_to(ROOT / "docs").as_posix() if inside else page_of(target)
    return posixpath.relpath(page, posixpath.dirname(name)) + link[2]


def beyond_fences(markdown: str, change: Callable[[str], str]) -> str:
    """The text with all changed but what is in fences."""
    parts, end = [], 0
    for fence in FENCED.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def spaced(text: str) -> str:
    """The text with an empty line between a paragraph and a list that follows it."""
    return re.sub(r"^((?![*\-] |\d+\. |[ |#]).+\n)(?=(?:[*-]|1\.) \S)", r"\1\n", text, flags=re.MULTILINE)
