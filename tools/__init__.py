"""Programs behind the make targets; none of them is part of the package."""
