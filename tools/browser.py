"""Finds the Chromium that tests and screenshots drive. It only looks; `tools.servers` fetches.

Playwright's own browsers are not used: they come from elsewhere, Debian's comes with its security updates.
"""

import os
import shutil
from pathlib import Path

from tools.server_binaries import UNPACKED, Binaries

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
NO_BROWSER = """\
The browser tests need Chromium and none could be had: no EVENFLOW_TEST_CHROMIUM, no program on PATH, no Debian package.
Install it (on Debian and Ubuntu: apt-get install chromium), or set EVENFLOW_TEST_CHROMIUM=/path/to/chromium."""


def find_chromium() -> Path | None:
    """The program: named by EVENFLOW_TEST_CHROMIUM, on PATH, or unpacked beside the environment."""
    if named := os.environ.get("EVENFLOW_TEST_CHROMIUM"):
        return Path(named)
    for name in NAMES:
        if found := shutil.which(name):
            return Path(found)
    unpacked = UNPACKED / "usr/lib/chromium/chromium"
    return unpacked if unpacked.exists() else None


def environment() -> dict[str, str]:
    """What the program needs besides PATH: unpacked packages bring libraries that the machine lacks."""
    found = find_chromium()
    if found is None or UNPACKED not in found.parents:
        return {}
    return Binaries(found.parent, "unpacked Debian package", (UNPACKED,)).environment()
