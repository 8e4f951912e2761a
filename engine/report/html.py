"""Reports as self-contained pages with images and style, made from the live page's components."""

from __future__ import annotations

import base64

from ..pages.components import style
from ..pages.markup import Inside, Safe, h, join


def document(title: str, span: str, *body: Inside) -> str:
    """A whole page: its heading, a line below it, and the body."""
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("title", title),
        h("style", Safe(style())),
    )
    return f"<!DOCTYPE html>\n{h('html', head, h('body', h('main', h('h1', title), h('p', span), *body)), lang='en')}\n"


def figure(heading: str, caption: str, image: bytes | None, nothing: str) -> Safe:
    """A PNG under its heading, or a sentence saying why there is none."""
    if image is None:
        return join(h("h2", heading), h("p", nothing))
    data = base64.b64encode(image).decode()
    picture = h("img", src=f"data:image/png;base64,{data}", alt=heading)
    return join(h("h2", heading), h("figure", h("div", picture, class_="wide", tabindex=0), h("figcaption", caption)))
