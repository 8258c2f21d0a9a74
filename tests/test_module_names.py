"""The name of a file's module: alone, in a package, in a package of a package."""

from pathlib import Path

import pytest

from evenflow.module_names import module_of_file


@pytest.mark.parametrize(
    ("packages", "file", "folder", "name"),
    [
        ([], "jobs.py", ".", "jobs"),
        ([], "shop/jobs.py", "shop", "jobs"),
        (["shop"], "shop/jobs.py", ".", "shop.jobs"),
        (["shop", "shop/mail"], "shop/mail/jobs.py", ".", "shop.mail.jobs"),
        (["shop/mail"], "shop/mail/jobs.py", "shop", "mail.jobs"),
        (["shop"], "shop/__init__.py", ".", "shop"),
    ],
)
def test_a_file_is_a_module_of_the_packages_around_it(
    tmp_path: Path, packages: list[str], file: str, folder: str, name: str
) -> None:
    for each in packages:
        (tmp_path / each).mkdir(parents=True)
        (tmp_path / each / "__init__.py").touch()
    assert module_of_file(tmp_path / file) == ((tmp_path / folder).resolve(), name)
