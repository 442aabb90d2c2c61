"""Web server of the dashboard: requests of the page, and a stream of changes in run folders."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from controlvae.errors import UserError
from controlvae.lab.dashboard import model_views as views
from controlvae.lab.dashboard.log_tail import LogTail, to_columns
from controlvae.lab.dashboard.run_list import RunList, find_runs_below
from controlvae.lab.reading import parse_json
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.requests import request_target

_PAGE = Path(__file__).parent / "page"
_POLL_SECONDS = 0.5  # between checks of the files
_KEEP_ALIVE_POLLS = 20  # checks without a change after which a keep-alive comment is sent
_MAX_BODY_BYTES = 1_000  # of a request to move a target
_MAX_READERS = 2  # reads at a time, however many pages are open
LOCAL = ("127.0.0.1", "localhost", "::1")
# Everything is loaded from this server, and no other page can embed this one.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Dashboard:
    """Handlers of requests, over the runs below one folder."""

    def __init__(self, root: Path, models: views.ModelCache, stopping: Callable[[], bool]) -> None:
        self.root, self.models, self.stopping = root, models, stopping
        self._readers = asyncio.Semaphore(_MAX_READERS)

    def folder(self, request: Request) -> RunFolder:
        """Return the run that a request names. Only runs below the root can be named."""
        name = request.query_params.get("run", "")
        runs = find_runs_below(self.root)
        if name not in runs:
            raise HTTPException(404, f"no run {name!r} in {self.root}")
        return runs[name]

    async def page(self, request: Request) -> Response:
        """Serve the page."""
        return FileResponse(_PAGE / "index.html", headers=_HEADERS)

    async def events(self, request: Request) -> Response:
        """Stream the list of runs and the logs of the named runs as server-sent events."""
        names = request.query_params.getlist("run")
        return StreamingResponse(
            self._stream(names), media_type="text/event-stream", headers=_HEADERS
        )

    async def _stream(self, names: Sequence[str]) -> AsyncIterator[str]:
        run_list, before, idle_polls = RunList(self.root), None, 0
        tails: dict[tuple[str, str], LogTail] = {}
        while not self.stopping():
            idle_polls += 1
            runs = await self._read(run_list.refresh)
            if runs != before:
                before, idle_polls = runs, 0
                yield _format_event("runs", {"root": str(self.root), "runs": runs})
            # A named run may be created after the page was opened.
            existing = {run["run"] for run in runs}
            for name in [name for name in names if name in existing]:
                folder = RunFolder(self.root / name)
                files = {"log": folder.log_file, "validation": folder.validation_file}
                for kind, file in files.items():
                    tail = tails.setdefault((kind, name), LogTail(file))
                    if event := await self._read(_log_event, kind, name, tail):
                        idle_polls = 0
                        yield event
            if idle_polls >= _KEEP_ALIVE_POLLS:
                idle_polls = 0
                yield ": keep-alive\n\n"
            await asyncio.sleep(_POLL_SECONDS)

    async def _read(self, read: Callable[..., Any], *args: Any) -> Any:
        async with self._readers:
            return await run_in_threadpool(read, *args)

    async def latents(self, request: Request) -> Response:
        """Return the latents of largest KL and a code to start from."""
        return await self._json_view(request, views.describe_latents)

    async def sentences(self, request: Request) -> Response:
        """Return sampled and reconstructed sentences."""
        return await self._json_view(request, views.describe_sentences)

    async def code(self, request: Request) -> Response:
        """Return the code of an example."""
        return await self._json_view(request, views.encode_example, _parse_int(request, "example"))

    async def image(self, request: Request) -> Response:
        """Return the decoded image of a code as PNG."""
        return _png(await self._view(request, views.render_image, _parse_code(request)))

    async def strip(self, request: Request) -> Response:
        """Return images of a code with one latent moved, as PNG."""
        code, latent = _parse_code(request), _parse_int(request, "latent")
        return _png(await self._view(request, views.render_strip, code, latent))

    async def target(self, request: Request) -> Response:
        """Request another target for a run.

        Only JSON is accepted. A form on another site cannot send it.
        """
        content_type = request.headers.get("content-type", "").partition(";")[0]
        if content_type.strip().lower() != "application/json":
            raise HTTPException(415, f"expected application/json, got {content_type!r}")
        folder = await run_in_threadpool(self.folder, request)
        try:
            content = parse_json(await _read_body(request))
        except ValueError:
            raise HTTPException(400, "the body is not valid JSON") from None
        target = content.get("target") if isinstance(content, dict) else None
        await run_in_threadpool(request_target, folder, target)
        return JSONResponse({}, headers=_HEADERS)

    async def _json_view(
        self, request: Request, view: Callable[..., Any], *args: Any
    ) -> JSONResponse:
        return JSONResponse(await self._view(request, view, *args), headers=_HEADERS)

    async def _view(self, request: Request, view: Callable[..., Any], *args: Any) -> Any:
        """Call a view with the model of a run, in a thread, so that the stream is not blocked."""
        return await run_in_threadpool(lambda: view(self.models.load(self.folder(request)), *args))


def make_app(
    root: Path,
    data_root: Path | None,
    device: torch.device,
    host: str,
    stopping: Callable[[], bool] = lambda: False,
) -> Starlette:
    """Create the application.

    Args:
        root: Folder whose runs are shown.
        data_root: Folder in which data files are searched first.
        device: Device of the models.
        host: Interface the server binds to. A local one accepts only local host names.
        stopping: Function that returns True when event streams must end.
    """
    dashboard = Dashboard(root, views.ModelCache(data_root, device), stopping)
    routes: list[Route | Mount] = [Route("/", dashboard.page)]
    for handler in (
        dashboard.events,
        dashboard.latents,
        dashboard.sentences,
        dashboard.code,
        dashboard.image,
        dashboard.strip,
    ):
        routes.append(Route(f"/{handler.__name__}", handler))
    routes.append(Route("/target", dashboard.target, methods=["POST"]))
    routes.append(Mount("/page", StaticFiles(directory=_PAGE)))
    # Foreign host names that resolve to this machine (DNS rebinding) are rejected.
    hosts = [*LOCAL, "[::1]"] if host in LOCAL else ["*"]
    return Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
        exception_handlers={
            UserError: _refuse,
            HTTPException: _refuse,
            Exception: _report_failure,
        },
    )


def serve_dashboard(
    root: Path,
    data_root: Path | None,
    device: torch.device,
    host: str,
    port: int,
    ready: Callable[[str], None],
) -> None:
    """Serve the dashboard until Ctrl-C.

    Args:
        root: Folder whose runs are shown.
        data_root: Folder in which data files are searched first.
        device: Device of the models.
        host: Interface to bind to.
        port: Port to bind to; 0 picks a free one.
        ready: Called with the address once the page can be opened.

    Raises:
        UserError: The folder does not exist, or the port is in use.
        KeyboardInterrupt: The server was stopped by Ctrl-C.
    """
    import uvicorn

    if not root.is_dir():
        raise UserError(f"no folder {root}; train a run first: controlvae train shapes2d-quick")
    app = make_app(root, data_root, device, host, lambda: server.should_exit)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=2))
    with contextlib.closing(_bind(host, port)) as listening:
        bound_port = listening.getsockname()[1]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{bound_port}/")
        server.run(sockets=[listening])
    if server.should_exit:  # uvicorn raises KeyboardInterrupt itself in most cases
        raise KeyboardInterrupt


def _bind(host: str, port: int) -> socket.socket:
    """Bind the socket before anything else, so that a port in use gives a one-line error."""
    try:
        kind = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(kind[0], socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(kind[4])
        listening.listen()
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror}; "
            f"choose another --port, or 0 for a free one"
        ) from None
    return listening


def _log_event(kind: str, name: str, tail: LogTail) -> str | None:
    """Return the event with the new records of a log, or None if there are none."""
    reset, records = tail.read()
    if not reset and not records:
        return None
    columns = to_columns(records) if records else None
    return _format_event(kind, {"run": name, "reset": reset, "columns": columns})


def _format_event(kind: str, content: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(content)}\n\n"


async def _read_body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY_BYTES:
            raise HTTPException(413, f"expected at most {_MAX_BODY_BYTES:,} bytes")
    return body


def _parse_code(request: Request) -> list[float]:
    text = request.query_params.get("code", "")
    try:
        return [float(value) for value in text.split(",")]
    except ValueError:
        raise HTTPException(
            400, f"code must be numbers separated by commas, got {text!r}"
        ) from None


def _parse_int(request: Request, name: str) -> int:
    try:
        return int(request.query_params[name])
    except (KeyError, ValueError):
        raise HTTPException(400, f"{name} must be an integer") from None


def _png(content: bytes) -> Response:
    return Response(content, media_type="image/png", headers=_HEADERS)


async def _refuse(request: Request, error: Exception) -> Response:
    status, message = (
        (error.status_code, error.detail) if isinstance(error, HTTPException) else (400, str(error))
    )
    return JSONResponse({"error": message}, status, headers=_HEADERS)


async def _report_failure(request: Request, error: Exception) -> Response:
    """Show an unexpected error on the page."""
    return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500, headers=_HEADERS)
