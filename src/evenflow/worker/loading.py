"""Finding an app by its name `MODULE:APP` or `FILE.py:APP`. The only place that imports a user's module by name."""

import difflib
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from evenflow.errors import ConfigError
from evenflow.module_names import module_of_file

DEFAULT_NAME = "app"


def load_object(locator: str, kind: type, *, paths: list[str] | None = None) -> Any:
    """The object of class `kind` that the locator names; ConfigError says what is wrong with the locator."""
    module_name, _, name = locator.partition(":")
    if not module_name:
        raise ConfigError(f"expected MODULE:APP, got {locator!r}; write the module first, as in jobs:app")
    for path in reversed(paths if paths is not None else [os.getcwd()]):
        if path not in sys.path:
            sys.path.insert(0, path)
    module = _module(module_name)
    return _named(module, module_name, name or DEFAULT_NAME, kind)


def load_apps(locator: str, kind: type, *, paths: list[str]) -> list[Any]:
    """All objects of class `kind` in the module that the locator names; for processes that run single jobs."""
    if locator == "__main__":
        raise ConfigError(
            "it is in the script that was started, which cannot be run twice; move it into a module and import it there"
        )
    for path in reversed(paths):
        if path not in sys.path:
            sys.path.insert(0, path)
    module = _module(locator.partition(":")[0])
    if ":" in locator:
        return [_named(module, locator.partition(":")[0], locator.partition(":")[2], kind)]
    found = [value for value in vars(module).values() if isinstance(value, kind)]
    if not found:
        raise ConfigError(f"module {locator!r} holds no app; an isolated body needs its app at module level")
    return found


def _module(name: str) -> ModuleType:
    try:
        return _from_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (name == missing.name or name.startswith(missing.name + ".")):
            raise ConfigError(
                f"there is no module {name!r} in {os.getcwd()} or on the Python path{_near(name)}"
            ) from None
        raise ConfigError(f"module {name!r} cannot be imported: {missing}") from missing
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ConfigError(
            f"module {name!r} cannot be imported: {text} ({where.filename}, line {where.lineno})"
        ) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r} in {os.getcwd()}")
    folder, name = module_of_file(path)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    module = importlib.import_module(name)
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != path.resolve():
        raise ConfigError(
            f"file {str(path)!r} cannot be loaded: the module name {name!r} belongs to {found or 'Python itself'}; "
            "rename the file"
        )
    return module


def _near(name: str) -> str:
    here = [
        entry.stem
        for entry in Path.cwd().iterdir()
        if entry.suffix == ".py" or (entry / "__init__.py").exists()
    ]
    near = difflib.get_close_matches(name, here, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _named(module: ModuleType, module_name: str, name: str, kind: type) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            break
    if isinstance(found, kind):
        return found
    apps = [each for each, value in vars(module).items() if isinstance(value, kind)]
    advice = (
        f"; it has {', '.join(f'{module_name}:{each}' for each in apps)}"
        if apps
        else f"; it holds no {kind.__name__} at all"
    )
    if found is None:
        raise ConfigError(f"module {module_name!r} has no {name!r}{advice}")
    raise ConfigError(
        f"{module_name}:{name} is a {type(found).__name__}, expected an {kind.__name__}{advice}"
    )
