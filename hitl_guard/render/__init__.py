"""What a person is shown, the same on every surface: the signed arguments in full, with nothing in them unseen.

`characters` makes visible what a terminal or a page would obey or hide, `layout` lays out the signed bytes and says
what in them deserves a second look, `request` puts a whole request together. No module here does I/O.
"""

from .characters import ascii_only, escape, quoted
from .layout import arguments, warnings
from .request import left, request_json, request_line, request_text, utc

__all__ = [
    "arguments", "ascii_only", "escape", "left", "quoted", "request_json", "request_line", "request_text", "utc",
    "warnings",
]
