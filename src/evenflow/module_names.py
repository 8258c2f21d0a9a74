"""By which name a Python file is imported: the one fact that a script's own tasks and a worker's must agree on."""

from pathlib import Path


def module_of_file(path: Path) -> tuple[Path, str]:
    """(folder to import from, module name) of a file; a file inside a package is a module of that package.

    >>> module_of_file(Path("/nowhere/jobs.py"))
    (PosixPath('/nowhere'), 'jobs')
    """
    path = path.resolve()
    folder, name = path.parent, path.stem
    while (folder / "__init__.py").is_file():
        folder, name = folder.parent, f"{folder.name}.{name}"
    return folder, name.removesuffix(".__init__")
