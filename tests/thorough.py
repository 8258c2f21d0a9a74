"""How hard Hypothesis tries: enough to see a new mistake in the suite, ten times as hard with EVENFLOW_HYPOTHESIS=long."""

import os

IS_LONG = os.environ.get("EVENFLOW_HYPOTHESIS") == "long"


def examples(few: int) -> int:
    """The number of examples of a test that the suite gives `few`."""
    return few * 10 if IS_LONG else few
