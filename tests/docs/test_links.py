"""Links lead somewhere: every page that is named exists, every heading that is named stands on it."""

import re

import pytest

from tests.docs.pages import ROOT, Page, all_pages

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_MODULE = re.compile(r"`(evenflow(?:\.[a-z_]+)+)(?:/[a-z]+)?`")

every_page = pytest.mark.parametrize("page", all_pages().values(), ids=all_pages().keys())


def anchors(page: Page) -> set[str]:
    """The anchors that GitHub and Sphinx give to headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in page.headings}


@every_page
def test_links_to_pages_and_headings_exist(page: Page) -> None:
    for link in _LINK.findall(page.prose):
        if re.match(r"https?://", link):
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / page.name).parent / target if target else ROOT / page.name
        assert path.is_file(), f"{link}: no such file"
        if anchor:
            assert anchor in anchors(all_pages()[str(path.resolve().relative_to(ROOT))]), (
                f"{link}: no such heading"
            )


@every_page
def test_modules_that_a_page_names_exist(page: Page) -> None:
    for name in _MODULE.findall(page.text):
        place = ROOT / "src" / name.replace(".", "/")
        is_module = place.is_dir() or place.with_suffix(".py").is_file()
        last = name.rpartition(".")
        parent = ROOT / "src" / last[0].replace(".", "/")
        sources = [parent.with_suffix(".py"), parent / "__init__.py"]
        is_name = any(last[2] in path.read_text() for path in sources if path.is_file())
        is_absent_on_purpose = name in all_pages()["docs/status.md"].section("What is not there yet")
        assert is_module or is_name or is_absent_on_purpose, name


@every_page
def test_a_page_begins_with_its_title_and_has_one(page: Page) -> None:
    assert page.text.startswith("# ")
    assert len(re.findall(r"^# ", page.prose, re.MULTILINE)) == 1
