"""`python -m tools.figures [NAME…]`: runs what a picture shows, and writes it into docs/images."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.stores import private_stores
from tools.figures import charts, diagrams, runs
from tools.figures.claims import claim_costs

IMAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "images"
MEMORY = Path("/dev/shm")  # what a disk's flush costs is not what the pictures are about


def fairness(folder: Path) -> str:
    return charts.race([_least_disturbed(folder, "fifo"), _least_disturbed(folder, "round-robin")])


def _least_disturbed(folder: Path, fair: runs.Fair) -> runs.Seen:
    """The quickest of three: other work of the machine would look like a difference between the two orders."""
    seen = [runs.race(folder / str(number), fair) for number in range(3)]
    return min(seen, key=lambda leg: leg.starts[-1][0])


def shares(folder: Path) -> str:
    return charts.shares([runs.tenants(folder, "fifo"), runs.tenants(folder, "round-robin")])


def cap(folder: Path) -> str:
    return charts.cap(runs.capped(folder))


def rate(folder: Path) -> str:
    return charts.rate([runs.rated(folder, burst=None), runs.rated(folder, burst=1)])


def claim(_: Path) -> str:
    with private_stores() as stores:
        return charts.claim(claim_costs(stores))


FIGURES: dict[str, Callable[[Path], str]] = {
    "fairness": fairness,
    "shares": shares,
    "cap": cap,
    "rate": rate,
    "claim": claim,
    "states": lambda _: diagrams.states(),
    "architecture": lambda _: diagrams.architecture(),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.figures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(FIGURES)}")
    names: list[str] = parser.parse_args().names or list(FIGURES)
    if unknown := set(names) - FIGURES.keys():
        parser.error(f"there is no figure {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    IMAGES.mkdir(exist_ok=True)
    for name in names:
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            path = IMAGES / f"{name}.svg"
            path.write_text(FIGURES[name](Path(folder)), "utf-8")
            print(path)


if __name__ == "__main__":
    main()
