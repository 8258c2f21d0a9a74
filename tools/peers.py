"""Runs the "before" of the pages for those who come from other queues, with those queues: `nox -s peers`.

They are no dependency of this project, so the tests leave these blocks out; here each runs in a process of its own.
"""

import subprocess
import sys
import tempfile

from tests.docs.pages import DOCS, Block, Page
from tests.postgres_server import PostgresServer

PAGES = ("celery", "huey", "procrastinate")
MARK = "nox -s peers"
PLACEHOLDER = "//shop:secret@localhost/shop"
WITHIN_S = 120


def main() -> int:
    """Run all of them; the exit code says whether each did what its page says."""
    codes = []
    with PostgresServer() as server:
        for peer in PAGES:
            for block in _blocks(peer):
                address = server.url(server.create_database()).partition(":")[2]
                codes.append(_run(block, block.text.replace(PLACEHOLDER, address)))
    return max(codes, default=1)


def _blocks(peer: str) -> list[Block]:
    path = DOCS / f"coming-from-{peer}.md"
    blocks = Page(f"docs/{path.name}", path.read_text()).blocks
    found = [block for block in blocks if MARK in block.notes.get("not run", "")]
    assert found, f"{path.name} has no block marked {MARK!r}"
    return found


def _run(block: Block, text: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", text], cwd=folder, timeout=WITHIN_S, check=False)
    print(f"{block.page}, line {block.line}: {'ran' if done.returncode == 0 else 'FAILED'}", flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
