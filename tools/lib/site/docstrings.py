"""An extension of griffe, which reads the docstrings: makes Markdown of what is not Markdown in them.

Tables of reST are shown as they stand there. A list needs no empty line before it. Another name of a method
says of which.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Object

TABLE = re.compile(
    r"^=+(?:  +=+)+\n(?:.*\n)*?=+(?:  +=+)+\n(?:(?:.*\S.*\n)*?=+(?:  +=+)+(?:\n|$))", re.MULTILINE
)
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
    return LIST.sub(r"\1\n", TABLE.sub(_fenced, text))


def _fenced(table: re.Match[str]) -> str:
    # as long as before, so that columns stay below each other
    rows = re.sub(r"``(.*?)``", r"\1    ", table[0]).rstrip()
    return f"```text\n{rows}\n```\n"
