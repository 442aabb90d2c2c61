"""Who may use the dashboard, in a real Chromium: other sites, hostile names, and the token."""

import functools
import http.server
import json
import threading
import urllib.parse

import pytest
from browser import CHROMIUM
from dashboard_server import served_page, view_of
from logged_runs import logged_run

from controlvae.lab.runs.folder import RunFolder

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
PRESET = "shapes2d-control-16"
RUN = f"plain/{PRESET}/seed-1"
HOSTILE = [
    "<img src=x onerror=window.pwned=1>",
    "<script>window.pwned=2<",
    "a\"b'c&amp;",
    "hash#q?x=1&run=2%2F",
    "new\nline\ttab",
    "right\u202eto left",
    "$\\frac{",
]
CURVES = "document.querySelectorAll('#stage canvas').length >= 2"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for name in ("plain", *HOSTILE):
        logged_run(root / name, PRESET, 1, 20_000)
    return root


@pytest.fixture(scope="module")
def page(runs):
    with served_page(runs) as address:
        yield address


@pytest.fixture
def other_site(tmp_path):
    """Serve an empty page at another origin of this machine, and yield its port."""
    (tmp_path / "index.html").write_text("<!doctype html><title>other</title><p>other site")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_hostile_names_are_only_text(tab, page):
    names = [f"{name}/{PRESET}/seed-1" for name in HOSTILE]
    tab.open(view_of(page, *names))
    tab.wait(CURVES)
    tab.wait("document.querySelector('#stage .legend button') !== null")
    assert tab.run("document.querySelectorAll('.run .tick:checked').length") == len(HOSTILE)
    assert tab.run("typeof window.pwned") == "undefined"
    assert (
        tab.run("document.querySelectorAll('body img[src=x], main script, nav script').length") == 0
    )
    for name in names:
        tab.run(
            "(() => { const choice = document.querySelector('#focus-run');"
            f" choice.value = {json.dumps(name)}; choice.dispatchEvent(new Event('change')); }})()"
        )
        tab.wait(f"document.querySelector('#focus-name').title === {json.dumps(name)}")
    assert tab.run("typeof window.pwned") == "undefined"
    assert tab.complaints == []


ATTACK = """(async () => {
  const address = %s, found = {};
  const attempt = async (name, call) => {
    try { const answer = await call(); found[name] = answer.type + answer.status; }
    catch (error) { found[name] = 'blocked'; }
  };
  const post = (more) => fetch(address + 'target?run=' + encodeURIComponent(%s),
    { method: 'POST', body: '{"target": 9}', ...more });
  await attempt('json', () => post({ headers: { 'content-type': 'application/json' } }));
  await attempt('opaque', () => post({ mode: 'no-cors' }));
  await attempt('with cookies', () => post({ mode: 'no-cors', credentials: 'include' }));
  await attempt('read', () => fetch(address + 'settings?run=' + encodeURIComponent(%s)));
  found.beacon = navigator.sendBeacon(address + 'target', new Blob(['{"target": 9}']));
  const frame = document.createElement('iframe');
  frame.src = address;
  document.body.append(frame);
  await new Promise((done) => { frame.onload = frame.onerror = done; });
  try { found.frame = frame.contentDocument === null ? 'blocked' : 'open'; } catch { found.frame = 'blocked'; }
  const image = new Image();
  found.image = await new Promise((done) => { image.onload = () => done('open');
    image.onerror = () => done('blocked'); image.src = address + 'original?run=x'; });
  const target = document.createElement('iframe');
  target.name = 'answer';
  const form = document.createElement('form');
  Object.assign(form, { method: 'post', enctype: 'text/plain', target: 'answer',
    action: address + 'target?run=' + encodeURIComponent(%s) });
  const field = document.createElement('input');
  Object.assign(field, { name: '{"target": 9, "x": "', value: '"}' });
  form.append(field);
  document.body.append(target, form);
  form.submit();
  await new Promise((done) => { target.onload = done; setTimeout(done, 3000); });
  return found;
})()"""


@pytest.mark.parametrize("name", ["evil.test", "localhost"])
def test_another_site_reads_and_moves_nothing(tab, page, runs, other_site, name):
    tab.open(f"http://{name}:{other_site}/")
    tab.wait("document.title === 'other'")
    run = json.dumps(RUN)
    found = tab.run(ATTACK % (json.dumps(page), run, run, run))
    assert (found["json"], found["read"]) == ("blocked", "blocked")
    assert (found["frame"], found["image"]) == ("blocked", "blocked")
    assert not RunFolder(runs / RUN).request_file.exists()
    # The same request from the page itself is heard: the test above could have seen it.
    tab.open(page)
    tab.wait("document.querySelector('#filter') !== null")
    tab.run(
        f"fetch('/target?run=' + encodeURIComponent({run}), {{method: 'POST',"
        " headers: {'content-type': 'application/json'}, body: '{\"target\": 15}'})"
    )
    assert RunFolder(runs / RUN).request_file.exists()
    RunFolder(runs / RUN).request_file.unlink()


def test_names_that_resolve_to_this_machine_are_refused(tab, page):
    port = urllib.parse.urlsplit(page).port
    tab.open(f"http://rebound.test:{port}/")
    tab.wait("document.body.innerText.includes('host name')")
    assert tab.run("document.querySelector('#filter')") is None


def test_page_beyond_loopback_needs_its_token_once(tab, chromium, runs):
    with served_page(runs, host="0.0.0.0") as address:
        assert "token=" in address
        place = urllib.parse.urlsplit(address)
        here = f"http://127.0.0.1:{place.port}/"
        tab.open(here)
        tab.wait("document.body.innerText.includes('token')")
        assert tab.run("fetch('/settings?run=x').then((answer) => answer.status)") in (401, 403)
        with chromium.tab() as guest:
            guest.open(f"{here}?{place.query}")
            guest.wait("document.querySelectorAll('.run').length > 1")
            assert "token" not in guest.run("location.href")
            guest.open(view_of(here, RUN))  # the cookie is enough from now on
            guest.wait(CURVES)
            assert guest.complaints == []
