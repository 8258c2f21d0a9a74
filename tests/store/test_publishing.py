"""Published tasks: written again they are replaced, withdrawn ones are gone."""

from evenflow.store.open import AnyEngine
from evenflow.store.publishing import Published, publish, published, withdraw


def test_published_tasks_are_listed_and_replaced(store: AnyEngine) -> None:
    publish(store, {"b": "{}", "a": '{"queue": "mail"}'}, now=1)
    publish(store, {"b": '{"queue": "x"}'}, now=2)
    assert published(store) == [Published("a", '{"queue": "mail"}', 1), Published("b", '{"queue": "x"}', 2)]


def test_a_withdrawn_task_is_gone(store: AnyEngine) -> None:
    publish(store, {"a": "{}", "b": "{}"}, now=1)
    assert withdraw(store, ["b", "c"]) == ["b"]
    assert [each.task for each in published(store)] == ["a"]
