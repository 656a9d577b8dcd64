"""The page as PDF, printed by Chromium with the page's own style for paper."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from railx.errors import UserError
from railx.io import atomic_path

#: What may print the page, by the names it is installed under.
CHROMIUMS = (
    *("chromium", "chromium-browser", "google-chrome"),
    *("google-chrome-stable", "chrome", "headless-shell"),
)
_SECONDS = 300
_FLAGS = (
    *("--headless", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-first-run", "--no-pdf-header-footer", "--generate-pdf-document-outline"),
)


def find_chromium() -> str:
    """The Chromium to print with: CHROMIUM of the environment, or one on the path.

    Raises ValueError where there is none.
    """
    requested = os.environ.get("CHROMIUM")
    if requested:
        browser = shutil.which(requested)
        if browser is None:
            got = f"CHROMIUM: got {requested!r}, which is no program"
            raise UserError(f"{got}; allowed: a Chromium or Chrome")
        return browser
    browser = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if browser is None:
        got = f"no Chromium to print with: none of {', '.join(CHROMIUMS)} is on the path"
        installed = "one of them installed (Debian: apt install chromium)"
        raise UserError(f"{got}; allowed: {installed}, or its place in CHROMIUM")
    return browser


def print_pdf(page: str | Path, pdf: str | Path) -> None:
    """Print the page to ``pdf``, atomically.

    Raises ValueError (one line) where the page or Chromium is missing, and where it
    prints nothing.
    """
    page = Path(page).resolve()
    if not page.is_file():
        raise UserError(f"{page}: no such page; make it first: railx reproduce")
    chromium = find_chromium()
    # Chromium refuses its sandbox to root.
    extra = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
    with atomic_path(pdf) as beside, tempfile.TemporaryDirectory(prefix="railx-pdf-") as profile:
        flags = (*_FLAGS, *extra, f"--user-data-dir={profile}", f"--print-to-pdf={beside}")
        command = [chromium, *flags, page.as_uri()]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"{chromium}: did not print {page}: {error}") from None
        if done.returncode or not beside.read_bytes().startswith(b"%PDF"):
            said = " ".join(done.stderr.split())[-200:] or "nothing said"
            raise UserError(f"{chromium}: did not print {page}: {said}")
