"""An extension of griffe, which reads the docstrings: makes Markdown of what is not Markdown in them.

Tables are reST's there, and a list needs no empty line before it. Another name of a method says of which.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Object

RULER = r"=+(?:  +=+)+\n"
TABLE = re.compile(rf"^({RULER})(.+\n){RULER}((?:.*\S.*\n)+?){RULER[:-2]}(?:\n|$)", re.MULTILINE)
LIST = re.compile(r"^((?![*\-] |\d+\. | ).*\S.*\n)(?=[*-] \S)", re.MULTILINE)


class Docstrings(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_attribute(self, *, attr: Attribute, **_: Any) -> None:
        named = str(attr.value)
        if attr.docstring is None and isinstance(attr.parent, Class) and named in attr.parent.members:
            attr.docstring = Docstring(f"Another name of `{named}`.")


def as_markdown(text: str) -> str:
    return LIST.sub(r"\1\n", TABLE.sub(_table, text))


def _table(table: re.Match[str]) -> str:
    """A table of reST as one of Markdown."""
    ruler, head, body = table.groups()
    starts = [column.start() for column in re.finditer("=+", ruler)]
    rows: list[list[str]] = []
    for line in body.splitlines():
        cells = _cells(line, starts)
        if rows and (not cells[0].strip() or rows[-1][0].endswith(",")):  # the row goes on
            rows[-1] = [
                f"{above} {cell.strip()}".strip() for above, cell in zip(rows[-1], cells, strict=True)
            ]
        else:
            below = len(cells[0]) - len(cells[0].lstrip())  # what an entry of a tree is below of
            rows.append(["&emsp;" * (below // 2) + cells[0].strip(), *map(str.strip, cells[1:])])
    lines = [_cells(head, starts), ["---"] * len(starts), *rows]
    return "".join(f"| {' | '.join(map(str.strip, line))} |\n" for line in lines)


def _cells(line: str, starts: list[int]) -> list[str]:
    """The cells of a line. One that is too long for its column is alone, and the next line has the others."""
    cells = [""] * len(starts)
    end = len(line)
    for column in reversed(range(len(starts))):
        start = starts[column]
        if start == 0 or line[start - 1 : start] == " ":
            cells[column], end = line[start:end], start
    return cells
