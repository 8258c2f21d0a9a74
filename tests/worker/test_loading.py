"""Finding an app by its name: what a locator may be, and what is said when it is wrong."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenflow import ConfigError, Evenflow
from evenflow.worker.loading import load_apps, load_object

SHOP = """
from evenflow import Evenflow
app = Evenflow("sqlite:///:memory:")
other = Evenflow("sqlite:///:memory:")
number = 5
class space:
    deep = other
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules, forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(here: Path, name: str, text: str) -> None:
    path = here / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def refusal(locator: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load_object(locator, Evenflow)
    return str(refused.value)


@pytest.mark.parametrize("locator", ["shop_a:app", "shop_a", "shop_a.py:app", "./shop_a.py:app", "shop_a.py"])
def test_an_app_is_found_by_module_or_by_file(here: Path, locator: str) -> None:
    write(here, "shop_a.py", SHOP)
    assert load_object(locator, Evenflow) is sys.modules["shop_a"].app


def test_exactly_the_named_app_is_served(here: Path) -> None:
    write(here, "shop_b.py", SHOP)
    assert load_object("shop_b:other", Evenflow) is sys.modules["shop_b"].other
    assert load_object("shop_b:space.deep", Evenflow) is sys.modules["shop_b"].other


def test_a_module_inside_a_package_is_found(here: Path) -> None:
    write(here, "pack_c/__init__.py", "")
    write(here, "pack_c/jobs.py", SHOP)
    assert isinstance(load_object("pack_c.jobs:app", Evenflow), Evenflow)


def test_a_file_inside_a_package_may_import_its_siblings(here: Path) -> None:
    write(here, "pack_k/__init__.py", "")
    write(here, "pack_k/prices.py", "TEA = 3\n")
    write(here, "pack_k/jobs.py", "from .prices import TEA\n" + SHOP)
    assert load_object("pack_k/jobs.py:app", Evenflow) is sys.modules["pack_k.jobs"].app
    assert load_object("pack_k.jobs:app", Evenflow) is sys.modules["pack_k.jobs"].app


def test_a_file_whose_name_belongs_to_another_module_is_refused(here: Path) -> None:
    write(here, "json.py", SHOP)
    text = refusal("json.py:app")
    assert "file 'json.py' cannot be loaded: the module name 'json' belongs to" in text
    assert text.endswith("rename the file")
    write(here, "sys.py", SHOP)
    assert "the module name 'sys' belongs to Python itself" in refusal("sys.py:app")


def test_ctrl_c_during_the_import_is_no_error_of_the_module(here: Path) -> None:
    write(here, "slow_l.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_object("slow_l:app", Evenflow)


def test_a_missing_module_is_named_with_a_near_one(here: Path) -> None:
    write(here, "shopping.py", SHOP)
    text = refusal("shoping:app")
    assert "there is no module 'shoping'" in text
    assert "did you mean 'shopping'?" in text


def test_a_missing_file_is_named() -> None:
    assert "there is no file 'none.py'" in refusal("none.py:app")


def test_a_missing_name_lists_the_apps_there_are(here: Path) -> None:
    write(here, "shop_d.py", SHOP)
    assert "has no 'shop'; it has shop_d:app, shop_d:other" in refusal("shop_d:shop")


def test_an_object_of_another_kind_is_named(here: Path) -> None:
    write(here, "shop_e.py", SHOP)
    assert "shop_e:number is a int, expected an Evenflow" in refusal("shop_e:number")


def test_a_module_without_any_app_is_named(here: Path) -> None:
    write(here, "empty_f.py", "")
    assert "it holds no Evenflow at all" in refusal("empty_f:app")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ValueError('no key')", "ValueError: no key"),
        ("import nowhere_to_be_found", "No module named 'nowhere_to_be_found'"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("1 +", "SyntaxError"),
        ("from evenflow import Evenflow\napp = Evenflow('mysql://x')", "mysql"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(here: Path, source: str, said: str) -> None:
    write(here, "broken_g.py", source)
    text = refusal("broken_g:app")
    assert said in text


def test_the_line_that_failed_is_named(here: Path) -> None:
    write(here, "broken_h.py", "\n\nraise ValueError('no key')")
    assert "broken_h.py, line 3" in refusal("broken_h:app")


def test_a_locator_without_a_module_is_refused() -> None:
    assert "write the module first, as in jobs:app" in refusal(":app")


def test_all_apps_of_a_module_are_found_for_isolated_bodies(here: Path) -> None:
    write(here, "shop_i.py", SHOP)
    assert len(load_apps("shop_i", Evenflow, paths=[str(here)])) == 2
    assert len(load_apps("shop_i:other", Evenflow, paths=[str(here)])) == 1
    write(here, "empty_j.py", "")
    with pytest.raises(ConfigError, match="needs its app at module level"):
        load_apps("empty_j", Evenflow, paths=[str(here)])
