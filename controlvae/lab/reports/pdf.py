"""A report as PDF, printed by a browser of this machine."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from controlvae.errors import RunError, UserError
from controlvae.lab.io import writing

_BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)
_OPTIONS = ("--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
_MAX_SECONDS = 300


def require_browser() -> str:
    """Return the path of a browser that can print.

    Raises:
        UserError: If there is none.
    """
    for name in _BROWSERS:
        if (path := shutil.which(name)) is not None:
            return path
    raise UserError(
        "a PDF needs Chromium or Chrome, and none was found; install one, or open the HTML report "
        "in any browser and print it"
    )


def print_pdf(page: Path) -> Path:
    """Print a report as a PDF with the same name next to it, and return its path.

    Raises:
        UserError: If there is no browser.
        RunError: If the browser fails.
    """
    browser, path = require_browser(), page.with_suffix(".pdf")
    options = [*_OPTIONS, "--no-pdf-header-footer"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append(
            "--no-sandbox"
        )  # its sandbox does not start as root; the page has no scripts
    # Next to the page: a browser in a container of its own, such as a snap, does not see /tmp.
    with tempfile.TemporaryDirectory(prefix="controlvae-", dir=page.resolve().parent) as folder:
        made = Path(folder) / "report.pdf"
        options += [f"--user-data-dir={folder}/profile", f"--print-to-pdf={made}"]
        try:
            done = subprocess.run(
                [browser, *options, page.resolve().as_uri()],
                capture_output=True,
                timeout=_MAX_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"{browser} did not print {page} within {_MAX_SECONDS} s") from None
        if not made.is_file():
            raise RunError(f"{browser} could not print {page} (exit status {done.returncode})")
        with writing(path) as temporary:
            shutil.copyfile(made, temporary)
    return path
