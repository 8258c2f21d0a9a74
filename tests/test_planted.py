"""Planted bugs: every patch still fits the sources, the runner tells caught from survived, and two are tried for real."""

import shutil
from pathlib import Path

import pytest

from tools import planted
from tools.planted import Patch, PatchError, apply, parsed, patches, run

QUICK = ("v-moves-back",)
HARMLESS = """\
bug: nothing at all
test: tests/rules/test_rate.py::test_a_burst_of_one_spaces_starts_evenly
--- a/src/evenflow/rules/rate.py
+++ b/src/evenflow/rules/rate.py
@@ -1,1 +1,1 @@
-SLICES = 64
+SLICES = 32 * 2
"""


def test_there_are_enough_of_them() -> None:
    assert len(patches()) >= 10


@pytest.mark.parametrize("patch", patches(), ids=lambda patch: patch.name)
def test_every_patch_fits_the_sources(patch: Patch, tmp_path: Path) -> None:
    for path in {hunk.path for hunk in patch.hunks}:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(planted.ROOT / path, tmp_path / path)
    apply(patch, tmp_path)
    assert all((tmp_path / hunk.path).read_text().count(hunk.after) >= 1 for hunk in patch.hunks)
    assert all((planted.ROOT / test.partition("::")[0]).exists() for test in patch.tests)


def test_a_patch_that_does_not_fit_any_more_is_told(tmp_path: Path) -> None:
    patch = parsed("old", HARMLESS.replace("-SLICES = 64", "-SLICES = 63"))
    shutil.copytree(planted.ROOT / "src/evenflow/rules", tmp_path / "src/evenflow/rules")
    with pytest.raises(PatchError, match="fits 0 places"):
        apply(patch, tmp_path)


@pytest.mark.parametrize("text", ["", "bug: x\n", HARMLESS.replace("test: ", "# "), HARMLESS + "?\n"])
def test_a_patch_without_its_parts_is_refused(text: str) -> None:
    with pytest.raises(PatchError):
        parsed("broken", text)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(PatchError, match="no planted bug 'nobody'"):
        patches(["nobody"])


@pytest.mark.process
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_seen(name: str) -> None:
    code, output = run(patches([name])[0])
    assert code == planted.TESTS_FAILED, output


@pytest.mark.large
def test_a_bug_that_survives_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "harmless.patch").write_text(HARMLESS)
    monkeypatch.setattr(planted, "FOLDER", tmp_path)
    assert planted.main([]) == 1
    assert "| harmless | nothing at all | SURVIVED" in capsys.readouterr().out
