"""What an option of ``hitl-guard serve`` names as MODULE:NAME: imported, and called where it is a function.

An error of the host's own code is told by its kind and place, never by its message, which may hold a secret.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError, HitlGuardError


def loaded(option: str, name: str) -> Any:
    """Import what ``MODULE:NAME`` stands for. The current folder is looked in first, as uvicorn does.

    Raises:
        ConfigurationError: there is no such module or name in it, or the import fails; the message says where.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigurationError(f"{option} {name} cannot be loaded: give MODULE:NAME.")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, "")
    try:
        found = importlib.import_module(module)
    except HitlGuardError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"{option} {name} cannot be loaded: there is no module '{error.name}' in this folder, on PYTHONPATH or "
                "installed."
            ) from error
        raise _failed(option, name, error) from error
    try:
        return getattr(found, attribute)
    except AttributeError as error:
        raise ConfigurationError(
            f"{option} {name} cannot be loaded: the module '{module}' has no '{attribute}'."
        ) from error


def called(option: str, name: str, function: Any) -> Any:
    """Call a host's function without arguments, and return what it made.

    Raises:
        ConfigurationError: it raised something that is not ours (the message says where), or it is asynchronous.
    """
    try:
        made = function()
    except HitlGuardError:
        raise
    except Exception as error:
        raise _failed(option, name, error) from error
    if inspect.iscoroutine(made):
        made.close()
        raise ConfigurationError(f"{option} {name} is asynchronous: give a function that returns it at once.")
    return made


def _failed(option: str, name: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"{option} {name} failed with {type(error).__name__}{_place(error)}.")


def _place(error: Exception) -> str:
    """Return `` in FILE, line N``: the last place in the host's own code."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" in {error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    others = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib")), str(Path(__file__).parents[1]), "<")
    own = [frame for frame in frames if not frame.filename.startswith(others)]
    frame = (own or frames)[-1]
    return f" in {frame.filename}, line {frame.lineno}"
