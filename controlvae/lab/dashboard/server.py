"""Web server of the dashboard: requests of the page, and a stream of changes in run folders.

A run is named by its path below the folder, `.` for the folder itself. Errors are
`{"error": "one line"}` with status 400 (bad input), 403 (another site, wrong host name, no token,
read-only), 404 (no such run), 413, 415, 503 (too many streams or requests) or 500. Styles and scripts
inside of markup are blocked by the content security policy of every response.

`GET /events?run=A&run=B&version=V` streams server-sent events. V is the version of the list that the
page has, if any. `columns=kl,beta` sends only these columns of the logs, and `whole=A`, which may be
repeated, all columns of one run all the same. Without `columns` all of them are sent. Events in the
order in which they come:

- `runs` {root, version, read_only, runs: [summary]}: the list, newest first. Not sent if V is a
  version of this server's list.
- `changes` {version, runs: [changed or new summaries], removed: [names]}: changes of the list.
- `log`, `validation` {run, reset, columns}: new records of a named run. `reset` discards earlier
  ones. `columns` is null or {step: [...], kl: [...], ..., latents: [[...], ...]}. If columns were
  left out, `log` also has `names`: the columns of the log that hold numbers.
- `marks` {run, reset, marks: [{event, kind, step, text, time}]}: `kind` is target, warning,
  checkpoint or state. All marks are sent at every change, with `reset` true.

Summary: {run, preset, law, state, step, steps, controlled, target, latest, shows, checkpoint,
steerable, request, steering, reach, created, warnings, speed, seconds_left} or {run, error}.
`target` is the one in force, `law` shows it if it was moved. `reach` is [low, high], null where
unknown. `steering` is null before the first request, then {asked, applied: {target, step} | null,
outcome: asked | approaching | reached | out of reach, reach}. `warnings` follow the list in
`changes` events.

`POST /target?run=A` {"target": 20} -> {target, state: "asked", note: null | text}. The note tells
that the target lies outside the known reach; one that lies far outside is refused with 400.

`GET /settings?run=A&run=B` -> {runs, settings: [{name: "training.steps", values: [...]}]}.
`GET /metrics?run=A&run=B` -> {runs, metrics: [{name, label, better: higher | lower | null, unit,
decimals, values: [number | null]}]}.

Views of a model. All take `rate=` in nats for a rate-conditioned run, and those of an example
`example=N`, by default a fixed random one:

- `GET /latents?run=A` -> {step, latents: [{latent, name, kl}], among, reach: 3, rates: null | [low,
  high], and all of /example}. Also for sentences and dialogs.
- `GET /example?run=A` -> {example, code, sd, kl} of each latent, in the order of the model; `text` of a
  sentence, `text` and `context` [lines] of a dialog.
- `GET /code?run=A` -> [posterior mean].
- `GET /image?run=A&code=0,1.5,...` -> PNG. `GET /strip?...&latent=N` -> PNG of nine images.
- `GET /original?run=A` -> PNG: an example, and next to it its reconstruction.
- `GET /sentence?run=A&code=...` -> {sentence}; of a dialog the answer to the context of `example`.
- `GET /sentences?run=A` -> {step, samples, reconstructions: [{sentence, read_back}]}.
"""

import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from controlvae.errors import UserError
from controlvae.lab.dashboard.access import Access
from controlvae.lab.dashboard.guard import MAX_BODY_BYTES, Guard
from controlvae.lab.dashboard.lazy_models import LazyModels
from controlvae.lab.dashboard.watcher import Watcher
from controlvae.lab.reading import parse_json, shorten
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.requests import request_target

_PAGE = Path(__file__).parent / "page"
_KEEP_ALIVE_SECONDS = 10.0  # without a change, after which a keep-alive comment is sent
_MAX_NAMES = 1_000  # of runs in one request
_log = logging.getLogger(__name__)


class Dashboard:
    """Handlers of requests, over the runs below one folder."""

    def __init__(
        self, root: Path, models: LazyModels, stopping: Callable[[], bool], read_only: bool
    ) -> None:
        self.root, self.models, self.read_only = root, models, read_only
        self.watcher = Watcher(root, stopping)

    async def folder(self, name: str) -> RunFolder:
        """Return a run by its name. Only runs below the root can be named."""
        found = await self.watcher.find(name)
        if found is None:
            raise HTTPException(404, f"no run {shorten(name)!r} in {self.root}")
        return found

    async def page(self, request: Request) -> Response:
        """Serve the page."""
        return FileResponse(_PAGE / "index.html")

    async def events(self, request: Request) -> Response:
        """Stream the list of runs, and the logs and marks of the named runs."""
        names = _names(request)
        version = request.query_params.get("version", "")
        columns, whole = _columns(request), set(request.query_params.getlist("whole"))
        changes = self.watcher.changes(names, version, columns, whole)
        return StreamingResponse(self._stream(changes), media_type="text/event-stream")

    async def _stream(self, events: AsyncGenerator[tuple[str, Any], None]) -> AsyncIterator[str]:
        quiet_since = time.monotonic()
        async with contextlib.aclosing(events) as changes:
            async for kind, content in changes:
                if kind == "runs":
                    content["read_only"] = self.read_only
                if kind:
                    yield await run_in_threadpool(_format_event, kind, content)
                elif time.monotonic() - quiet_since < _KEEP_ALIVE_SECONDS:
                    continue
                else:
                    yield ": keep-alive\n\n"
                quiet_since = time.monotonic()

    async def settings(self, request: Request) -> Response:
        """Return the settings of the named runs."""
        return await self._table(request, "settings")

    async def metrics(self, request: Request) -> Response:
        """Return the metrics of the named runs."""
        return await self._table(request, "metrics")

    async def _table(self, request: Request, kind: str) -> Response:
        names = _names(request)
        folders = [await self.folder(name) for name in names]
        rows = await run_in_threadpool(self.models.compare, kind, folders)
        return JSONResponse({"runs": names, kind: rows})

    async def latents(self, request: Request) -> Response:
        """Return the latents of largest KL and a code to start from."""
        view = "describe_latents"
        return await self._json_view(request, view, _example(request), _rate(request))

    async def example(self, request: Request) -> Response:
        """Return the posterior of an example."""
        view = "describe_example"
        return await self._json_view(request, view, _example(request), _rate(request))

    async def code(self, request: Request) -> Response:
        """Return the posterior mean of an example."""
        view = "encode_example"
        return await self._json_view(request, view, _example(request), _rate(request))

    async def sentences(self, request: Request) -> Response:
        """Return sampled and reconstructed sentences."""
        return await self._json_view(request, "describe_sentences")

    async def sentence(self, request: Request) -> Response:
        """Return the likeliest sentence of a code."""
        numbers = _parse_code(request), _example(request), _rate(request)
        return await self._json_view(request, "decode_sentence", *numbers)

    async def image(self, request: Request) -> Response:
        """Return the decoded image of a code as PNG."""
        view = "render_image"
        return _png(await self._view(request, view, _parse_code(request), _rate(request)))

    async def strip(self, request: Request) -> Response:
        """Return images of a code with one latent moved, as PNG."""
        numbers = _parse_code(request), _parse_int(request, "latent"), _rate(request)
        return _png(await self._view(request, "render_strip", *numbers))

    async def original(self, request: Request) -> Response:
        """Return an example next to its reconstruction as PNG."""
        view = "render_original"
        return _png(await self._view(request, view, _example(request), _rate(request)))

    async def target(self, request: Request) -> Response:
        """Request another target for a run.

        Only JSON is accepted. A form on another site cannot send it.
        """
        if self.read_only:
            raise HTTPException(403, "this dashboard is read-only: it moves no targets")
        content_type = request.headers.get("content-type", "").partition(";")[0]
        if content_type.strip().lower() != "application/json":
            raise HTTPException(415, f"expected application/json, got {content_type!r}")
        name = request.query_params.get("run", "")
        folder = await self.folder(name)
        try:
            content = parse_json(await _read_body(request))
        except ValueError:
            raise HTTPException(400, "the body is not JSON") from None
        target = content.get("target") if isinstance(content, dict) else None
        note = await run_in_threadpool(request_target, folder, target)
        await self.watcher.note_change(name)
        answer = {"target": target, "state": "asked", "note": note}
        return JSONResponse(answer)

    async def _json_view(self, request: Request, view: str, *args: Any) -> JSONResponse:
        return JSONResponse(await self._view(request, view, *args))

    async def _view(self, request: Request, view: str, *args: Any) -> Any:
        """Call a view with the model of a run, in a thread, so that the stream is not blocked."""
        folder = await self.folder(request.query_params.get("run", ""))
        return await run_in_threadpool(self.models.call, view, folder, *args)


def make_app(
    root: Path,
    models: LazyModels,
    access: Access,
    stopping: Callable[[], bool] = lambda: False,
    read_only: bool = False,
) -> Guard:
    """Create the application.

    Args:
        root: Folder whose runs are shown.
        models: Models of the runs.
        access: Who may use the dashboard.
        stopping: Function that returns True when event streams must end.
        read_only: Refuse to move targets.
    """
    dashboard = Dashboard(root, models, stopping, read_only)
    routes: list[Route | Mount] = [Route("/", dashboard.page)]
    for handler in (
        dashboard.events,
        dashboard.settings,
        dashboard.metrics,
        dashboard.latents,
        dashboard.example,
        dashboard.code,
        dashboard.sentences,
        dashboard.sentence,
        dashboard.image,
        dashboard.strip,
        dashboard.original,
    ):
        routes.append(Route(f"/{handler.__name__}", handler))
    routes.append(Route("/target", dashboard.target, methods=["POST"]))
    routes.append(Mount("/page", StaticFiles(directory=_PAGE)))
    report = _report_failure if access.token is None else _hide_failure
    app = Starlette(
        routes=routes,
        exception_handlers={UserError: _refuse, HTTPException: _refuse, Exception: report},
    )
    return Guard(app, access)


def _format_event(kind: str, content: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(content)}\n\n"


async def _read_body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"expected at most {MAX_BODY_BYTES:,} bytes")
    return body


def _parse_code(request: Request) -> list[float]:
    text = request.query_params.get("code", "")
    try:
        return [float(value) for value in text.split(",")]
    except ValueError:
        raise HTTPException(
            400, f"code must be numbers separated by commas, got {text!r}"
        ) from None


def _names(request: Request) -> list[str]:
    """Return the names of the requested runs, each once."""
    names = list(dict.fromkeys(request.query_params.getlist("run")))
    if len(names) > _MAX_NAMES:
        raise HTTPException(400, f"expected at most {_MAX_NAMES:,} runs, got {len(names):,}")
    return names


def _columns(request: Request) -> set[str] | None:
    """Return the names of the requested columns, or None for all of them."""
    parameters = request.query_params
    return set(parameters["columns"].split(",")) if "columns" in parameters else None


def _example(request: Request) -> int | None:
    """Return the index of the requested example, or None for the fixed random one."""
    return _parse_int(request, "example") if "example" in request.query_params else None


def _rate(request: Request) -> float | None:
    """Return the requested rate in nats, or None."""
    text = request.query_params.get("rate", "")
    try:
        return float(text) if text else None
    except ValueError:
        raise HTTPException(400, "rate must be a number of nats") from None


def _parse_int(request: Request, name: str) -> int:
    try:
        return int(request.query_params[name])
    except (KeyError, ValueError):
        raise HTTPException(400, f"{name} must be an integer") from None


def _png(content: bytes) -> Response:
    return Response(content, media_type="image/png")


async def _refuse(request: Request, error: Exception) -> Response:
    status, message = (
        (error.status_code, error.detail) if isinstance(error, HTTPException) else (400, str(error))
    )
    return JSONResponse({"error": message}, status)


async def _report_failure(request: Request, error: Exception) -> Response:
    """Show an unexpected error on the page."""
    return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)


async def _hide_failure(request: Request, error: Exception) -> Response:
    """Log an unexpected error here. A page on another machine only hears that there was one."""
    _log.error("%s: %s: %s", request.url.path, type(error).__name__, error)
    return JSONResponse({"error": "internal error; the terminal of the dashboard tells more"}, 500)
