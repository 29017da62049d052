"""Build the page and print its folder."""

from __future__ import annotations

import sys

from tests.chat.node import UnavailableError, build_page

try:
    print(build_page())
except UnavailableError as error:
    sys.exit(str(error))
