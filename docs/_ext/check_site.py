"""Checks a built site: it loads nothing from another host, and links, anchors and flags are whole.

    python docs/_ext/check_site.py docs/_build/html

Links to other hosts that a reader has to click are fine.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose address a browser loads without a click.
LOADED = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "track": ("src",),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
# Links of a page's head that load nothing.
NOT_LOADED = {"author", "canonical", "help", "index", "license", "next", "prev", "search"}


def styles(css: str) -> list[str]:
    """Returns the addresses that a style sheet loads.

    Example:
        >>> styles('@import "a.css"; p { background: url(b.png) }')
        ['a.css', 'b.png']
    """
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)
    quoted = re.findall(r"(?:url\(|@import)\s*([\"'])(.*?)\1", css)
    return [address for _, address in quoted] + re.findall(r"url\(\s*([^\"'\s)]+)\s*\)", css)


class Page(HTMLParser):
    """The anchors, links and loaded addresses of a page.

    Attributes:
        anchors: Values of ``id`` and ``name``.
        links: Addresses of ``<a>`` and ``<form>``.
        loaded: Addresses that a browser loads.
        dashes: Words that begin with a typographic dash, as flags do whose -- became one.
    """

    def __init__(self, html: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.dashes: list[str] = []
        self._style = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Reads the attributes of a tag."""
        values = {name: value or "" for name, value in attrs}
        self._style = tag == "style"
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.loaded += styles(values.get("style", ""))
        for name in LOADED.get(tag, ()):
            parts = values.get(name, "").split(",") if name == "srcset" else [values.get(name, "")]
            self.loaded += [part.split()[0] for part in parts if part.strip()]
        if tag == "link" and not set(values.get("rel", "").split()) & NOT_LOADED:
            self.loaded.append(values.get("href", ""))
        if tag == "meta" and values.get("http-equiv", "").lower() == "refresh":
            self.loaded.append(values.get("content", "").partition("url=")[2])
        if tag in ("a", "form"):
            self.links.append(values.get("href", values.get("action", "")))

    def handle_data(self, data: str) -> None:
        """Reads text, of the page or of a style sheet."""
        if self._style:
            self.loaded += styles(data)
        self.dashes += re.findall(r"(?<!\w)\u2013[a-z][\w.-]*", data)

    def handle_endtag(self, tag: str) -> None:
        """Ends a style sheet."""
        self._style = False


def _outside(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def faults(site: Path) -> Iterator[str]:
    """Yields what is wrong with a site, a line each."""
    files = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]
    pages = {path: Page(path.read_text("utf-8")) for path in files}
    loaded = [(path, address) for path, page in pages.items() for address in page.loaded]
    for path in sorted(site.rglob("*.css")):
        loaded += [(path, address) for address in styles(path.read_text("utf-8"))]
    for path, address in loaded:
        name, target = path.relative_to(site), urlsplit(address)
        if _outside(address):
            yield f"{name} loads {address[:80]} from another host"
        elif not target.scheme and not (path.parent / unquote(target.path)).exists():
            yield f"{name} loads {address}, which does not exist"
    for path, page in pages.items():
        name = path.relative_to(site)
        for word in page.dashes:
            yield f"{name} has {word}, whose -- became a dash"
        for link in page.links:
            target = urlsplit(link)
            if target.netloc or target.scheme:
                continue
            file = (path.parent / unquote(target.path)).resolve() if target.path else path
            anchors = pages[file].anchors if file in pages else None
            if not file.is_file():
                yield f"{name} links to {link}, which does not exist"
            elif anchors is not None and unquote(target.fragment) not in anchors | {"", "top"}:
                yield f"{name} links to {link}, which has no such anchor"


def main(folder: str) -> int:
    """Prints the faults of a site; returns the exit code."""
    site = Path(folder).resolve()
    wrong = [*faults(site)]
    print(*wrong, sep="\n", file=sys.stderr)
    pages = len([*site.rglob("*.html")])
    print(f"{pages} pages: {len(wrong) or 'no'} faults of links, loaded files and flags")
    return int(bool(wrong or not pages))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
