"""`python -m bench [names…] [--quick] [--json FILE] [--peers --harness DIR]`: run benchmarks, print Markdown tables."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers import HARNESS_VARIABLE, PEERS, compare
from bench.report import Report
from bench.sizes import FULL, QUICK
from bench.stores import private_stores
from bench.suite import BENCHMARKS, measured


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; the exit code."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    if asked.peers and asked.harness is None:
        parser.error(f"--peers needs the harness: give --harness DIR, or set {HARNESS_VARIABLE}")
    sizes = QUICK if asked.quick else FULL
    reports: list[Report] = []
    names = asked.names or ([] if asked.peers else list(BENCHMARKS))
    if names:
        with private_stores() as stores:
            reports += [_printed(measured(name, stores, sizes)) for name in names]
    if asked.peers:
        reports += [_printed(report) for report in compare(asked.harness, asked.against.split(","), sizes)]
    if asked.json is not None:
        asked.json.write_text(json.dumps([report.values() for report in reports], indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Evenflow on this machine.")
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}; all unless told"
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: a minute or two instead of a quarter of an hour"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    parser.add_argument(
        "--peers", action="store_true", help="compare with other queues; alone unless names are given"
    )
    parser.add_argument(
        "--harness", type=Path, metavar="DIR", default=os.environ.get(HARNESS_VARIABLE),
        help=f"where the harness of peers lies; default: {HARNESS_VARIABLE}",
    )  # fmt: skip
    parser.add_argument(
        "--against", metavar="A,B", default=",".join(PEERS), help="which peers; default: %(default)s"
    )
    return parser


def _printed(report: Report) -> Report:
    print(report.markdown(), end="\n\n", flush=True)
    return report


if __name__ == "__main__":
    sys.exit(main())
