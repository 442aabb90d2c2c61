"""The page's server: what it may be asked, and a stream of what happens in the run folders."""

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
from controlvae.lab.dashboard.log_tail import LogTail, columns
from controlvae.lab.dashboard.run_list import RunList, find
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.requests import request_target

_PAGE = Path(__file__).parent / "page"
_EVERY = 0.5  # seconds between looks at the files
_QUIET = 20  # looks without news after which the stream says that it is there
_LONGEST = 1_000  # bytes of a request to move a set point
LOCAL = ("127.0.0.1", "localhost", "::1")
# Everything comes from here; a page elsewhere can neither frame this one nor be loaded into it.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Dashboard:
    """The answers, over the runs below one folder."""

    def __init__(self, root: Path, models: views.ModelCache, stopping: Callable[[], bool]) -> None:
        self.root, self.models, self.stopping = root, models, stopping
        self._readers = asyncio.Semaphore(
            2
        )  # however many pages are open, there is time and memory for what they ask

    def folder(self, request: Request) -> RunFolder:
        """The run a request names: one of those found, and no other folder of this machine."""
        name = request.query_params.get("run", "")
        runs = find(self.root)
        if name not in runs:
            raise HTTPException(404, f"no run {name!r} in {self.root}")
        return runs[name]

    async def page(self, request: Request) -> Response:
        return FileResponse(_PAGE / "index.html", headers=_HEADERS)

    async def events(self, request: Request) -> Response:
        """Server-sent events: the list of runs, and the logs of those named, as they grow."""
        names = request.query_params.getlist("run")
        return StreamingResponse(
            self._follow(names), media_type="text/event-stream", headers=_HEADERS
        )

    async def _follow(self, names: Sequence[str]) -> AsyncIterator[str]:
        watch, before, quiet = RunList(self.root), None, 0
        tails: dict[tuple[str, str], LogTail] = {}
        while not self.stopping():
            quiet += 1
            runs = await self._read(watch.look)
            if runs != before:
                before, quiet = runs, 0
                yield _event("runs", {"root": str(self.root), "runs": runs})
            there = {each["run"] for each in runs}
            for name in [
                name for name in names if name in there
            ]:  # a run may begin while one waits for it
                folder = RunFolder(self.root / name)
                for kind, file in (
                    ("log", folder.log_file),
                    ("validation", folder.validation_file),
                ):
                    tail = tails.setdefault((kind, name), LogTail(file))
                    if news := await self._read(_added, kind, name, tail):
                        quiet = 0
                        yield news
            if quiet >= _QUIET:
                quiet = 0
                yield ": still here\n\n"
            await asyncio.sleep(_EVERY)

    async def _read(self, read: Callable[..., Any], *args: Any) -> Any:
        async with self._readers:
            return await run_in_threadpool(read, *args)

    async def latents(self, request: Request) -> Response:
        return JSONResponse(await self._opened(request, views.latents), headers=_HEADERS)

    async def sentences(self, request: Request) -> Response:
        return JSONResponse(await self._opened(request, views.sentences), headers=_HEADERS)

    async def code(self, request: Request) -> Response:
        example = _whole(request, "example")
        return JSONResponse(
            await self._opened(request, views.encode_example, example), headers=_HEADERS
        )

    async def picture(self, request: Request) -> Response:
        return _png(await self._opened(request, views.picture, _code(request)))

    async def strip(self, request: Request) -> Response:
        return _png(
            await self._opened(request, views.strip, _code(request), _whole(request, "latent"))
        )

    async def target(self, request: Request) -> Response:
        """Moves a set point. Only this page may ask: a form elsewhere cannot send JSON."""
        if (
            request.headers.get("content-type", "").partition(";")[0].strip().lower()
            != "application/json"
        ):
            raise HTTPException(415, "send JSON")
        folder = await run_in_threadpool(self.folder, request)
        try:
            asked = json.loads(await _body(request))
        except ValueError:
            raise HTTPException(400, "that is not JSON") from None
        await run_in_threadpool(
            request_target, folder, asked.get("target") if isinstance(asked, dict) else None
        )
        return JSONResponse({}, headers=_HEADERS)

    async def _opened(self, request: Request, view: Callable[..., Any], *args: Any) -> Any:
        """What a view makes of a run's model; in a thread, so that the stream goes on."""
        return await run_in_threadpool(lambda: view(self.models.at(self.folder(request)), *args))


def make_app(
    root: Path,
    data_root: Path | None,
    device: torch.device,
    host: str,
    stopping: Callable[[], bool] = lambda: False,
) -> Starlette:
    """The application over the runs below `root`."""
    answers = Dashboard(root, views.ModelCache(data_root, device), stopping)
    routes: list[Route | Mount] = [Route("/", answers.page)]
    for answer in (
        answers.events,
        answers.latents,
        answers.sentences,
        answers.code,
        answers.picture,
        answers.strip,
    ):
        routes.append(Route(f"/{answer.__name__}", answer))
    routes.append(Route("/target", answers.target, methods=["POST"]))
    routes.append(Mount("/page", StaticFiles(directory=_PAGE)))
    # A name of someone else's that leads here (DNS rebinding) is turned away.
    hosts = [*LOCAL, "[::1]"] if host in LOCAL else ["*"]
    return Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
        exception_handlers={UserError: _refused, HTTPException: _refused, Exception: _failed},
    )


def serve(
    root: Path,
    data_root: Path | None,
    device: torch.device,
    host: str,
    port: int,
    ready: Callable[[str], None],
) -> None:
    """Serves until Ctrl-C. `ready` is given the page's address once it can be opened."""
    import uvicorn

    if not root.is_dir():
        raise UserError(f"no folder {root}; train something first: controlvae train shapes2d-quick")
    app = make_app(root, data_root, device, host, lambda: server.should_exit)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=2))
    with contextlib.closing(_bound(host, port)) as listening:
        number = listening.getsockname()[1]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{number}/")
        server.run(sockets=[listening])
    if server.should_exit:  # by Ctrl-C, which uvicorn passes on most of the time
        raise KeyboardInterrupt


def _bound(host: str, port: int) -> socket.socket:
    """Bound before anything else, so that a port that is taken is one line."""
    try:
        kind = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(kind[0], socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(kind[4])
        found.listen()
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror}; another --port, or 0 for any"
        ) from None
    return found


def _added(kind: str, name: str, tail: LogTail) -> str | None:
    """The event of what is new in a log; None where nothing is."""
    anew, records = tail.read()
    if not anew and not records:
        return None
    return _event(
        kind, {"run": name, "anew": anew, "columns": columns(records) if records else None}
    )


def _event(kind: str, content: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(content)}\n\n"


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST:
            raise HTTPException(413, f"at most {_LONGEST:,} bytes")
    return body


def _code(request: Request) -> list[float]:
    try:
        return [float(value) for value in request.query_params.get("code", "").split(",")]
    except ValueError:
        raise HTTPException(400, "a code is numbers with commas between") from None


def _whole(request: Request, name: str) -> int:
    try:
        return int(request.query_params[name])
    except (KeyError, ValueError):
        raise HTTPException(400, f"{name} must be a whole number") from None


def _png(picture: bytes) -> Response:
    return Response(picture, media_type="image/png", headers=_HEADERS)


async def _refused(request: Request, error: Exception) -> Response:
    status, words = (
        (error.status_code, error.detail) if isinstance(error, HTTPException) else (400, str(error))
    )
    return JSONResponse({"error": words}, status, headers=_HEADERS)


async def _failed(request: Request, error: Exception) -> Response:
    """What nobody thought of: said on the page, too."""
    return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500, headers=_HEADERS)
