#!/bin/sh
# Install Debian's Chromium for the tests in a browser, where there is no browser yet and where we may.
# The last line says what happened; the exit status is 1 where the tests will be skipped.
set -u

skip() {
  echo "no Chromium: $1; the tests in a browser will be skipped" >&2
  exit 1
}

# pdftotext and pdftoppm read what the browser has printed.
for name in chromium chromium-browser google-chrome google-chrome-stable; do
  if command -v "$name" >/dev/null && command -v pdftotext >/dev/null; then
    echo "browser for the tests: $(command -v "$name")"
    exit 0
  fi
done

command -v apt-get >/dev/null || skip "this machine has no apt-get; install Chromium by its own means"
root=
if [ "$(id -u)" != 0 ]; then
  sudo -n true 2>/dev/null || skip "only root may install it: sudo apt-get install chromium poppler-utils"
  root="sudo -n"
fi

# A mirror that does not answer must not hold up the other tests.
apt="$root env DEBIAN_FRONTEND=noninteractive timeout 180 apt-get -q -y"
apt="$apt -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o DPkg::Lock::Timeout=60"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if $apt update >"$log" 2>&1 && $apt install --no-install-recommends chromium poppler-utils >>"$log" 2>&1; then
  echo "browser for the tests: installed Chromium"
else
  skip "apt-get could not install it ($(grep -E '^(E|W|Err)' "$log" | tail -n 1))"
fi
