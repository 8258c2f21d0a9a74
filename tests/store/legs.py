"""Which engines a test of the store runs on, where that is not all of them."""

import pytest

# What a store computes is the same behind a pooler, which changes nothing but whose session a statement has. A long comparison
# with a model, or thousands of rows, is left to the two engines; every operation has other cases behind the pooler.
on_both_engines = pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
