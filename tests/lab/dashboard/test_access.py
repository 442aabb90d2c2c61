"""Who may use the dashboard: foreign pages, wrong hosts, tokens, slow clients and large requests."""

import contextlib
import json
import socket
import time
import urllib.parse
import urllib.request

import pytest
from command import within
from dashboards import ask, connect, events, get, post_target, served, status, train_two

from controlvae.errors import UserError
from controlvae.lab.dashboard.access import AccessError, make_access, page_address
from controlvae.lab.dashboard.guard import HEADERS, MAX_STREAMS_PER_CLIENT

TOKEN = "a-token-of-the-tests"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_two(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def page(trained):
    with served(trained) as (address, _):
        yield address


@pytest.fixture(scope="module")
def open_page(trained):
    """Serve beyond this machine: the link with the token, and the address without it."""
    with served(trained, "--host", "0.0.0.0", "--allow-host", "box.example") as (link, _):
        yield link, link.partition("/?")[0]


def with_headers(address, **headers):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return urllib.request.Request(address, headers=names)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "0.0.0.0:8123",
        "127.0.0.1@evil.example",
        "localhost:80:80",
        "[::1",
        "[evil.example]",
    ],
)
def test_foreign_host_is_refused_on_every_path(page, host):
    for path in ("/", "/page/page.js", "/events", "/settings", "/nowhere"):
        assert status(with_headers(page + path, Host=host)) == 403, path
    assert status(post_target(page, "some/stopped", b'{"target": 9}', Host=host)) == 403


@pytest.mark.parametrize("host", ["localhost:1", "LOCALHOST", "127.0.0.1", "[::1]:8000"])
def test_local_names_are_served(page, host):
    assert status(with_headers(page + "/settings", Host=host)) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_other_sites_can_neither_read_nor_steer(trained, page, headers):
    for path in ("/events", "/settings?run=some/ended", "/page/page.js"):
        assert status(urllib.request.Request(page + path, headers=headers)) == 403
    assert status(post_target(page, "some/stopped", b'{"target": 9}', **headers)) == 403
    assert not (trained / "some" / "stopped" / "request.json").exists()


def test_a_link_on_another_site_opens_the_page_only_as_a_document(page):
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    for kind, expected in (("document", 200), ("iframe", 403), ("embed", 403)):
        request = urllib.request.Request(page, headers={**link, "Sec-Fetch-Dest": kind})
        assert status(request) == expected


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain; application/json",
    ],
)
def test_forms_cannot_steer(trained, page, kind):
    request = post_target(page, "some/stopped", b'{"target": 9}', **{"Content-Type": kind})
    assert status(request) == 415
    assert not (trained / "some" / "stopped" / "request.json").exists()


def test_every_response_has_the_headers(page, open_page):
    address = open_page[1]
    answers = [
        ask(page + "/"),
        ask(page + "/page/page.js"),
        ask(page + "/page/nowhere.js"),
        ask(page + "/nowhere"),
        ask(page + "/target"),  # GET
        ask(page + "/image?run=some/ended&code=x"),
        ask(with_headers(page, Host="evil.example")),
        ask(address),  # no token
        ask(urllib.request.Request(page, method="OPTIONS")),
    ]
    assert [answer[0] for answer in answers] == [200, 200, 404, 404, 405, 400, 403, 403, 405]
    with connect(page) as raw:
        raw.sendall(b"this is not HTTP\r\n\r\n")
        text = raw.makefile("rb").read().decode()
    assert text.startswith("HTTP/1.1 400 ")
    for name, value in HEADERS.items():
        assert all(answer[1].get_all(name) == [value] for answer in answers), name
        assert f"{name}: {value}" in text
    for _, headers, _ in answers:
        assert "uvicorn" not in str(headers).lower()
        assert headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize(
    "path",
    [
        "../server.py",
        "%2e%2e/server.py",
        "..%2fserver.py",
        "/etc/passwd",
        "....//server.py",
        "%5c..%5cserver.py",
        "",
    ],
)
def test_only_files_of_the_page_are_served(page, path):
    with connect(page) as raw:  # urllib would resolve the dots
        raw.sendall(f"GET /page/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    "name", ["../outside", "some/../some/ended", "./some/ended", "some//ended", "some\0/ended", "/"]
)
def test_runs_are_named_as_they_are_listed(page, name):
    for path in ("/latents", "/settings", "/metrics"):
        assert status(f"{page}{path}?{urllib.parse.urlencode({'run': name})}") == 404


def test_no_page_beyond_this_machine_without_the_token(trained, open_page):
    _, address = open_page
    assert not address.startswith("http://0.0.0.0")
    for path in ("/", "/page/page.js", "/events", "/settings", "/nowhere", "/?token=wrong"):
        code, headers, text = ask(address + path)
        assert (code, headers["Set-Cookie"]) == (403, None), path
        assert str(trained) not in text
    assert status(post_target(address, "some/stopped", b'{"target": 9}')) == 403
    assert status(with_headers(address, Cookie="controlvae=x")) == 403
    assert not (trained / "some" / "stopped" / "request.json").exists()


def test_the_token_is_exchanged_for_a_cookie(open_page):
    link, address = open_page
    token = urllib.parse.parse_qs(urllib.parse.urlsplit(link).query)["token"][0]
    assert len(token) >= 32
    code, headers, text = ask(link)
    assert (code, headers["Location"], text) == (303, "/", "")
    cookie, *rules = headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict"} <= set(rules)
    assert token not in cookie
    assert status(with_headers(address, Cookie=f"a=b; {cookie}; c=d")) == 200
    assert status(with_headers(address, Cookie=cookie[:-1])) == 403
    assert status(with_headers(address, Authorization=f"Bearer {token}")) == 200
    assert status(with_headers(address, Authorization=f"Bearer {token}x")) == 403
    # A strict cookie is not sent along a redirect that began on another site.
    link_headers = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    code, headers, text = ask(urllib.request.Request(link, headers=link_headers))
    assert code == 200
    assert 'content="0;url=/"' in text
    assert token not in text


def test_host_names_beyond_this_machine(open_page):
    link, address = open_page
    _, headers, _ = ask(link)
    cookie = headers["Set-Cookie"].split(";")[0]
    own = urllib.parse.urlsplit(address).hostname
    for host in ("box.example", own, socket.gethostname(), "localhost:99"):
        assert status(with_headers(address, Host=host, Cookie=cookie)) == 200, host
    for host in ("evil.example", "192.0.2.7", "0.0.0.0"):
        assert status(with_headers(address, Host=host, Cookie=cookie)) == 403, host
    request = with_headers(address, Host="evil.example", Origin="http://evil.example")
    request.add_header("Cookie", cookie)
    assert status(request) == 403


def test_token_of_the_user(trained):
    env = {"CONTROLVAE_DASHBOARD_TOKEN": TOKEN}
    with served(trained, env=env) as (link, _):
        assert link.endswith(f"/?token={TOKEN}")
        address = link.partition("/?")[0]
        assert status(address) == 403
        assert status(with_headers(address, Authorization=f"Bearer {TOKEN}")) == 200
    for token in ("short", "has spaces in it", "ümlaute-und-mehr"):
        done = within("dashboard", trained, "--no-open", "--token", token, cwd=trained)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "letters and digits" in done.stderr


def test_read_only(trained):
    with served(trained, "--read-only") as (address, _):
        code, _, text = ask(post_target(address, "some/stopped", b'{"target": 9}'))
        assert code == 403
        assert "read-only" in json.loads(text)["error"]
        with get(address, "/events") as stream:
            assert next(events(stream))[1]["read_only"] is True
    assert not (trained / "some" / "stopped" / "request.json").exists()


def closed_after(*connections):
    """Return the seconds until the server has closed each connection."""
    began, seconds = time.monotonic(), []
    for connection in connections:
        connection.settimeout(20)
        try:
            while connection.recv(10_000):
                pass
        except ConnectionError:
            pass
        seconds.append(time.monotonic() - began)
    return seconds


def test_slow_clients_are_closed(page):
    head = b"POST /target?run=some/stopped HTTP/1.1\r\nHost: localhost\r\n"
    silent, half, body, idle = (connect(page) for _ in range(4))
    half.sendall(head)
    body.sendall(head + b"Content-Type: application/json\r\nContent-Length: 20\r\n\r\n{")
    idle.sendall(b"GET /page/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert max(closed_after(silent, half, body, idle)) < 15


def test_a_trickle_is_no_request(page):
    """A client that sends a byte now and then gets no more time than a silent one."""
    with connect(page) as raw:
        raw.settimeout(1)
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 20:
                raw.sendall(b"x")
                time.sleep(0.5)
        assert time.monotonic() - began < 15


def test_streams_are_not_closed_as_slow(page):
    with get(page, "/events") as stream:
        began = time.monotonic()
        assert next(events(stream))[0] == "runs"
        while next(stream) != b": keep-alive\n":
            pass
        assert 5 < time.monotonic() - began < 30


def test_streams_are_limited(trained):
    with served(trained) as (address, _):
        streams = [get(address, "/events") for _ in range(MAX_STREAMS_PER_CLIENT)]
        code, headers, text = ask(address + "/events")
        assert (code, headers["Retry-After"]) == (503, "5")
        assert "close some" in json.loads(text)["error"]
        assert status(address) == 200  # everything else is still served
        for stream in streams:
            stream.close()
        deadline = time.monotonic() + 30
        while status_of_stream(address) == 503 and time.monotonic() < deadline:
            time.sleep(0.5)
        assert status_of_stream(address) == 200


def status_of_stream(address):
    try:
        with get(address, "/events") as stream:
            return stream.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_large_requests_are_refused(page):
    for head in (b"GET /?" + b"x" * 200_000, b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000):
        with connect(page) as raw:
            answer = b""
            # The rest of the request is not read, which may reset the connection.
            with contextlib.suppress(ConnectionError):
                raw.sendall(head)
                answer = raw.recv(100)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert status(post_target(page, "some/stopped", b" " * 10_000)) == 413
    head = b"POST /target?run=some/stopped HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(page) as raw:
        raw.sendall(head + b"800\r\n" + b" " * 0x800 + b"\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "FOO"])
def test_other_methods_are_refused(page, method):
    for path in ("/", "/target", "/page/page.js"):
        assert status(urllib.request.Request(page + path, method=method)) == 405


def test_unexpected_errors_are_told_on_this_machine_only(trained):
    from starlette.testclient import TestClient

    from controlvae.lab.dashboard.server import make_app

    class Broken:
        def call(self, view, folder, *args):
            raise KeyError("/secret/path")

    for host, is_told in (("127.0.0.1", True), ("192.0.2.7", False)):
        access = make_access(host, 8000)
        app = make_app(trained, Broken(), access)
        address = f"http://{host}:8000"
        client = TestClient(app, base_url=address, raise_server_exceptions=False)
        headers = {"Authorization": f"Bearer {access.token}"}
        answer = client.get("/latents?run=some/ended", headers=headers)
        assert answer.status_code == 500
        assert ("/secret/path" in answer.text) == is_told
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_rules_of_access():
    local = make_access("127.0.0.1", 8000)
    assert local.token is None
    assert page_address("::1", 8000, local) == "http://[::1]:8000/"
    named = make_access("box", 8000)
    assert page_address("box", 8000, named) == f"http://box:8000/?token={named.token}"
    assert make_access("box", 8000).token != named.token
    assert named.exchange_token(f"a=b&token={named.token}")[0] == "a=b"
    with pytest.raises(AccessError):
        named.exchange_token("token=" + "é" * 20)
    with pytest.raises(UserError):
        make_access("127.0.0.1", 8000, "short")
    both = make_access("::", 8000)
    both.check_source({"host": ["10.1.2.3:8000"]}, "::ffff:10.1.2.3", is_page=True)
    with pytest.raises(AccessError):
        both.check_source({"host": ["10.1.2.4:8000"]}, "::ffff:10.1.2.3", is_page=True)
    for hosts in ([], ["box", "box"]):
        with pytest.raises(AccessError):
            named.check_source({"host": hosts}, "", is_page=True)
