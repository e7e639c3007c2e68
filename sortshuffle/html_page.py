"""Pages for a browser. Each is one document, built as a tree, which escapes every name: no HTML is written
by hand.

The service's status page (`service.pages.status_page`) and reports (`report.page`) are made of these elements
in this one style, light or dark as the browser is set.

Rules
* A page is whole: it has no scripts, and loads nothing. Its policy forbids both to the browser.
* What a colour says, a word says too: the page is readable on paper, and by a screen reader.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from unicodedata import category
from xml.etree.ElementTree import Element, SubElement, tostring

MOST_ROWS = 100  # of a table; a service may have thousands of connections

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --soft: #57606a; --card: #f6f8fa;
  --warn: #9a4b00; --good: #1a7f37; }
@media (prefers-color-scheme: dark) {
  :root { --line: #3d444d; --soft: #9198a1; --card: #1c2128; --warn: #f0a35e; --good: #57ab5a; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; }
.soft { color: var(--soft); }
.warn { color: var(--warn); font-weight: 600; }
.good { color: var(--good); }
.cards { display: grid; gap: .75rem; margin: 1.5rem 0;
  grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem 1rem; }
.card h2, .card h3 { margin: 0; font-size: .85rem; font-weight: 500; color: var(--soft); }
.figure { font-size: 1.6rem; font-variant-numeric: tabular-nums; }
meter { width: 100%; height: .75rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .75rem; text-align: right; white-space: nowrap;
  vertical-align: top; border-bottom: 1px solid var(--line); overflow-wrap: normal; }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child, td.text, th.text { text-align: left; min-width: 10rem;
  overflow-wrap: anywhere; white-space: normal; }
code { font-size: .9em; }
h3 { font-size: .95rem; margin: 1.75rem 0 .25rem; }
h2.chapter { font-size: 1.25rem; margin-top: 3rem; padding-top: 1.5rem; border-top: 1px solid var(--line); }
ol { padding-left: 1.5rem; }
li { margin: .5rem 0; }
figure { margin: 0; }
figcaption { color: var(--soft); }
svg { display: block; width: 100%; min-width: 40rem; height: auto; }
footer { margin-top: 2rem; }
footer a { margin-right: 1.5rem; }
@media print {
  body { max-width: none; margin: 0; font-size: 10pt; }
  .scroll { overflow: visible; }
  svg { min-width: 0; }
  th, td { white-space: normal; padding: .2rem .4rem; }
  .card, figure, tr, li { break-inside: avoid; }
  h2, h3 { break-after: avoid; } }
"""


def new_page(title: str, refresh: int | None = None) -> tuple[Element, Element]:
    """Return a page and its empty body. ``refresh``: seconds after which the browser loads it again."""
    page = Element("html", lang="en")
    head = SubElement(page, "head")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": POLICY})
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    if refresh is not None:
        SubElement(head, "meta", {"http-equiv": "refresh", "content": str(refresh)})
    add(head, "title", text=title)
    SubElement(head, "style").text = STYLE
    return page, SubElement(page, "body")


def document(page: Element) -> bytes:
    """Return the page in UTF-8."""
    return f"<!DOCTYPE html>\n{tostring(page, encoding='unicode', method='html')}".encode()


def add(parent: Element, tag: str, kind: str = "", text: str = "") -> Element:
    """Append a child and return it. ``kind``: its CSS class."""
    child = SubElement(parent, tag, {"class": kind} if kind else {})
    child.text = shown(text)
    return child


def add_card(cards: Element, title: str, figure: str, lines: Iterable[str], heading: str = "h2") -> Element:
    """Append a card: its title, its one large figure, and lines below that. ``heading``: the title's tag, one
    level below the heading that the cards stand under."""
    card = add(cards, "section", "card")
    add(card, heading, text=title)
    add(card, "div", "figure", figure)
    for line in lines:
        add(card, "p", "soft", line)
    return card


def add_figure(body: Element, picture: Element, title: str, caption: str) -> None:
    """Add a picture with its title above and its caption below. ``caption``: says in words what it shows,
    also to those who cannot see it."""
    add(body, "h3", text=title)
    figure = add(body, "figure")
    add(figure, "div", "scroll").append(picture)
    add(figure, "figcaption", text=caption)


def add_table(
    body: Element,
    names: Sequence[str],
    rows: Sequence[tuple[bool, Sequence[str]]],
    texts: Container[int] = (),
) -> None:
    """Add a table. ``rows``: whether to mark the row, and its cells. ``texts``: columns of text besides the
    first, which is; others have numbers."""
    if not rows:
        add(body, "p", "soft", "None.")
        return
    table = SubElement(add(body, "div", "scroll"), "table")
    head = SubElement(SubElement(table, "thead"), "tr")
    for at, name in enumerate(names):
        add(head, "th", _kind(at, texts), name).set("scope", "col")
    lines = SubElement(table, "tbody")
    for marked, cells in rows[:MOST_ROWS]:
        line = add(lines, "tr", "warn" if marked else "")
        for at, cell in enumerate(cells):
            add(line, "td", _kind(at, texts), cell)
    if len(rows) > MOST_ROWS:
        add(body, "p", "soft", f"and {len(rows) - MOST_ROWS:,} more")


def _kind(at: int, texts: Container[int]) -> str:
    return "text" if at in texts else ""


def shown(text: str) -> str:
    """Replace unprintable characters other than spaces: names come from disks and peers."""
    return "".join(c if c.isprintable() or category(c) == "Zs" else "\N{REPLACEMENT CHARACTER}" for c in text)


def format_time(seconds: float) -> str:
    """Format a time: 1.5 s, 12 min, 3 h 5 min, 2 d 4 h."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
