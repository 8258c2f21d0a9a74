"""The rules on the page of alerts name metrics and labels that are there."""

import re
from pathlib import Path

from evenflow import Breaker, Evenflow, metrics
from tests.docs.pages import page

RULES = next(block.text for block in page("alerts").blocks if "- alert:" in block.text)


def rendered(folder: Path) -> str:
    """The metrics of an app that has run a job under a breaker, and has one that waits."""
    app = Evenflow(f"sqlite:///{folder}/metrics.db")

    @app.task(name="divide", breaker=Breaker())
    def divide(by: int) -> float:
        return 1 / by

    divide.enqueue_many([(1,), (0,)])
    app.run_worker(until_empty=True)
    divide.enqueue(1)
    text = metrics.render(app).decode()
    app.close()
    return text


def test_every_metric_and_label_of_a_rule_exists(tmp_path: Path) -> None:
    text = rendered(tmp_path)
    named = set(re.findall(r"evenflow_\w+", RULES))
    assert len(named) > 4
    assert [name for name in sorted(named) if f"# TYPE {name} " not in text] == []
    for name, label in re.findall(r"(evenflow_\w+)\{(\w+)=", RULES):
        assert re.search(rf"^{name}\{{[^}}]*\b{label}=", text, re.MULTILINE), f"{name} has no label {label}"
