"""Advice that the manual owes its readers stands where it belongs. Its examples are run by `test_code_blocks`."""

import re

import pytest

from evenflow import __all__ as public_names
from tests.docs.pages import ROOT, all_pages, page


def says(text: str, *parts: str) -> bool:
    """Whether a text says all of these, wherever its lines are broken."""
    flat = " ".join(text.split())
    return all(part in flat for part in parts)


def examples(text: str) -> int:
    return len(re.findall(r"^```python$", text, re.MULTILINE))


def test_queue_caps_are_shown_for_external_apis_for_a_database_and_for_isolation() -> None:
    section = page("caps").section("Caps of a queue")
    assert says(section, "**For an external API**", "**To protect a database**", "**For isolation**")
    parts = re.split(r"\*\*(?:For an external API|To protect a database|For isolation)\*\*", section)
    assert [examples(part) > 0 for part in parts[1:]] == [True, True, True]


def test_the_cluster_cap_is_shown_for_connections_shared_resources_and_cost() -> None:
    section = page("caps").section("The cap of the cluster")
    assert says(section, "**Connection limits.**", "**Shared resources.**", "**Cost.**")
    assert examples(section) > 0


def test_soft_mode_is_said_to_suit_one_worker_or_uniform_jobs_and_why() -> None:
    section = page("caps").section("Hard and soft")
    assert says(
        section, "Soft mode suits a single worker, or jobs of uniform length", "a long job keeps the jobs"
    )
    assert examples(section) > 0


def test_trouble_names_uneven_distribution_and_database_overload_with_the_remedy() -> None:
    section = page("caps").section("Trouble")
    assert says(section, "Lower `--max-claim-batch`", "or add workers")
    assert says(section, "**The database is overloaded.** Lower the caps")


def test_exact_names_are_said_to_be_fastest_with_figures() -> None:
    section = page("queues-and-fairness").section("What is fast")
    assert says(section, "few queues with exact names are fastest")
    assert re.search(r"100 queues took about \d", " ".join(section.split()))


def test_the_guarantee_of_a_rate_is_stated() -> None:
    section = page("rates").section("The guarantee")
    assert says(section, "The limit is exact.", "in the whole cluster", "A start is counted by the claim")


def test_which_on_conflict_fits_which_job_is_said() -> None:
    section = page("locks").section("When the lock is taken")
    assert says(
        section, "work that must be done, one after the other", "periodic work", "whose caller wants to know"
    )
    assert says(section, "give it retries and back-off, or the first contention ends it")
    assert examples(section) > 0


def test_alternatives_to_turns_are_named_with_when_they_are_enough() -> None:
    section = page("queues-and-fairness").section("Other ways to be fair")
    assert says(section, "**Approximate fairness**", "**Shuffle sharding**")
    assert section.count("It is enough when") == 2


@pytest.mark.parametrize("name", ["README.md", "docs/status.md"])
def test_what_is_not_there_yet_is_said(name: str) -> None:
    section = all_pages()[name].section("What is not there yet")
    assert "release" in section


def test_every_public_name_stands_in_the_manual() -> None:
    text = "\n".join(page.text for page in all_pages().values())
    assert [name for name in public_names if not re.search(rf"\b{name}\b", text)] == []


def test_the_changelog_names_the_part_of_every_entry() -> None:
    entries = re.findall(r"^- .+$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert entries
    assert [entry for entry in entries if not re.match(r"- `\[[A-Z][A-Za-z ]+\]` ", entry)] == []
