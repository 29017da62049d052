"""The OpenAPI 3.1 document, made from the app's own routes and models: every route and page is in it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..models import MAX_FIELD_BYTES, MAX_REASON
from .bodies import TARGETS
from .endpoints import ENDPOINTS, Endpoint
from .page_actions import MAX_BULK
from .problems import MEDIA_TYPE
from .query import SCHEMAS, Query
from .results import RESULTS, ref
from .schemes import BEARER, PUBLIC, Schemes, components, to_change, to_post_a_form, to_read
from .sessions import HEADER

_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
_OPEN = {("GET", "/health"): "Health", ("GET", "/ready"): "Ready"}
_STATIC = "/static/{name}"
_PAGE_STATUSES = (303, 400, 403, 404, 408, 409, 413, 415, 422, 429, 503)
_BODIES = {endpoint.body.__name__: endpoint.body for endpoint in ENDPOINTS if endpoint.body is not None}
_WORD = {"type": "string", "minLength": 1, "maxLength": MAX_FIELD_BYTES}
_REASON = {"type": "string", "maxLength": MAX_REASON}
_FORMS: dict[str, dict[str, Any]] = {
    "/bulk": {
        "type": "object", "required": ["answer", "pick"],
        "properties": {
            "answer": {"enum": ["approve", "deny"], "type": "string"},
            "pick": {"type": "array", "items": _WORD, "minItems": 1, "maxItems": MAX_BULK}, "reason": _REASON,
            "seen": {"type": "array", "items": {"type": "string"}},
        },
        "additionalProperties": False,
    },
    "/control": {
        "type": "object", "required": ["change"],
        "properties": {
            "change": {"enum": ["pause", "resume", "unmute"], "type": "string"}, "tool": _WORD, "agent": _WORD,
            "everything": {"const": "1"}, "everywhere": {"const": "1"}, "user": _WORD, "reason": _REASON,
        },
        "additionalProperties": False,
        "oneOf": [
            *({"required": [target], "properties": {"change": {"enum": ["pause", "resume"]}}}
              for target in TARGETS),
            {"required": ["tool", "user"], "properties": {"change": {"const": "unmute"}}},
        ],
    },
}
"""Forms whose fields matter to whoever posts them without the page; a browser adds the token to each."""


def document(
    routes: Iterable[BaseRoute], *, logins: Schemes = BEARER, public: Collection[str] = ()
) -> dict[str, Any]:
    """Return the document for an app with these routes.

    Args:
        logins: The schemes by which its login knows people. public: Paths of pages before the login.
    """
    open_ = {*public, *(path for _, path in _OPEN), _STATIC}
    paths: dict[str, dict[str, Any]] = {}
    table = {(one.method, one.path): one for one in ENDPOINTS}
    for route in routes:
        if not isinstance(route, Route):
            continue
        path = _PARAMETER.sub(r"{\1}", route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            endpoint = table.get((method, route.path))
            made = _page(method, route) if endpoint is None else _operation(endpoint)
            needs = to_read if method == "GET" else to_post_a_form if endpoint is None else to_change
            made["security"] = PUBLIC if route.path in open_ else needs(logins)
            paths.setdefault(path, {})[method.lower()] = made
    shown = _plain("openapi", "Show this document", {"type": "object"}, ()) | {"security": PUBLIC}
    paths["/api/openapi.json"] = {"get": shown}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "hitl_guard", "version": "1",
            "description": "Approvals of an agent's tool calls. Paths are relative to where the app is mounted. Who "
                           "one is, the host's login says. A browser's script sends the token of `/api/session` with "
                           "what changes something; a program that sends `Authorization` and no cookies need not.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": _schemas(), "securitySchemes": components(logins, header=HEADER)},
    }


def endpoint(
    routes: Iterable[BaseRoute], *, logins: Schemes, public: Collection[str]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint that serves the document of these routes; it is made when somebody asks for it."""
    @functools.cache
    def made() -> bytes:
        return json.dumps(document(routes, logins=logins, public=public)).encode()

    async def serve(request: Request) -> Response:
        return Response(made(), media_type="application/json")

    return serve


def _schemas() -> dict[str, Any]:
    found = dict(RESULTS)
    for name, model in _BODIES.items():
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        found |= schema.pop("$defs", {})
        found[name] = schema
    return dict(sorted(found.items()))


def _operation(one: Endpoint) -> dict[str, Any]:
    changes = one.method != "GET"
    if one.result == "Events":
        content = {"text/event-stream": {"schema": {"type": "string"}}}
        made = _operated(one.name, one.summary, content, (*one.statuses, 401, 503), one.path)
    else:
        made = _plain(one.name, one.summary, ref(one.result), (*one.statuses, 401, 503), one.path)
    made["parameters"] += [_parameter(query) for query in one.query]
    if changes:
        made["parameters"].append({
            "in": "header", "name": HEADER, "required": False, "schema": {"type": "string"},
            "description": "The token of `/api/session`; browsers need it.",
        })
    if one.body is not None:
        made["requestBody"] = {
            "required": True, "content": {"application/json": {"schema": ref(one.body.__name__)}},
        }
    return made


def _page(method: str, route: Route) -> dict[str, Any]:
    if (method, route.path) in _OPEN:
        schema = ref(_OPEN[method, route.path])
        made = _plain(route.name, "Say how the server is", schema, (), route.path)
        if route.path == "/ready":
            made["responses"]["503"] = _response(503, {"application/json": {"schema": schema}})
        return made
    statuses = (*_PAGE_STATUSES, 401)
    # What a page answers, also to an error, is a page: its media type depends on the file for static ones.
    made = _operated(
        f"{method.lower()}_{route.name}{_slug(route.path)}", "A page of the inbox", {"*/*": {}}, (), route.path
    )
    made["responses"] |= {
        str(status): _response(status, {} if status == 303 else {"*/*": {}}) for status in statuses
    }
    if method == "POST":
        form = {"application/x-www-form-urlencoded": {"schema": _FORMS.get(route.path, {"type": "object"})}}
        made["requestBody"] = {"required": True, "content": form}
    return made


def _slug(path: str) -> str:
    return re.sub(r"\W+", "_", path).rstrip("_")


def _plain(name: str, summary: str, schema: dict[str, Any], statuses: Iterable[int], path: str = "") -> dict[str, Any]:
    return _operated(name, summary, {"application/json": {"schema": schema}}, statuses, path)


def _operated(
    name: str, summary: str, content: dict[str, Any], statuses: Iterable[int], path: str
) -> dict[str, Any]:
    problem = {MEDIA_TYPE: {"schema": ref("Problem")}}
    responses = {"200": _response(200, content)}
    responses |= {str(status): _response(status, problem) for status in sorted(set(statuses))}
    return {
        "operationId": name, "summary": summary, "responses": responses,
        "parameters": [
            {"in": "path", "name": part, "required": True, "schema": {"type": "string", "minLength": 1}}
            for part in _PARAMETER.findall(path)
        ],
    }


def _response(status: int, content: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if content:
        made["content"] = content
    if status in (429, 503):
        made["headers"] = {"Retry-After": {"required": False, "schema": {"type": "string"}}}
    return made


def _parameter(query: Query) -> dict[str, Any]:
    schema = SCHEMAS[query.kind]
    if query.many:
        schema = {"type": "array", "items": schema}
    elif query.default is not None:
        schema = schema | {"default": query.default}
    return {"description": query.about, "in": "query", "name": query.key, "required": False, "schema": schema}
