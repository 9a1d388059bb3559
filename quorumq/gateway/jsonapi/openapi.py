"""The OpenAPI document, made of the table of operations and of the classes of their bodies."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from quorumq.gateway.jsonapi.operations import OPERATIONS, Operation
from quorumq.gateway.jsonapi.problems import TYPE
from quorumq.gateway.jsonapi.shapes import Problem

REF: Final = "#/components/schemas/{name}"
_NAMES: Final = re.compile(r"\{(\w+)(?::path)?\}")
_ERRORS: Final = {
    "400": "the request is wrong",
    "401": "no client has the token",
    "403": "a right is missing",
    "404": "no such topic, group or message",
    "409": "the state forbids it",
    "413": "over a limit",
    "415": "the body is no JSON",
    "429": "over a quota: Retry-After has the seconds",
    "500": "an error of the gateway",
    "503": "too few nodes answer: Retry-After has the seconds",
}


def document(is_open: bool = False) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document.

    Args:
        is_open: True if the gateway wants no token, as there is no clients file.
    """
    classes = [kind for one in OPERATIONS for kind in (one.body, one.answer) if kind is not None]
    queries = [one.query for one in OPERATIONS if one.query is not None]
    named = dict.fromkeys([*classes, Problem])
    schemas, components = msgspec.json.schema_components([*named, *dict.fromkeys(queries)], ref_template=REF)
    del schemas
    parameters = {query: parameters_of(components.pop(query.__name__)) for query in dict.fromkeys(queries)}
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        path = _NAMES.sub(r"{\1}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = entry(
            one, parameters[one.query] if one.query is not None else []
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "quorumq", "version": "1", "description": "JSON over HTTP of a gateway (docs/http.md)."},
        "servers": [{"url": "/v1"}],
        "security": [{}] if is_open else [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "NAME.SECRET"}},
            "responses": {
                status: {"description": text, "content": {TYPE: {"schema": ref(Problem)}}}
                for status, text in _ERRORS.items()
            },
        },
    }  # fmt: skip


def ref(kind: type[Any]) -> dict[str, Any]:
    return {"$ref": REF.format(name=kind.__name__)}


def parameters_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of a query as parameters."""
    parameters = []
    for name, field in schema["properties"].items():
        plain = [one for one in field.get("anyOf", [field]) if one.get("type") != "null"]
        value = plain[0] if len(plain) == 1 else {"anyOf": plain}
        if field.get("default") is not None:
            value = {**value, "default": field["default"]}
        parameters.append({"name": name, "in": "query", "required": False, "schema": value})
    return parameters


def entry(one: Operation, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    names = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _NAMES.findall(one.path)
    ]
    kind = "text/event-stream" if one.streams else "application/json"
    answer: dict[str, Any] = {"description": "done"}
    if one.answer is not None:
        answer["content"] = {kind: {"schema": {"type": "string"} if one.streams else ref(one.answer)}}
    responses = {str(one.status): answer}
    responses |= {status: {"$ref": f"#/components/responses/{status}"} for status in _ERRORS}
    made: dict[str, Any] = {
        "operationId": one.id,
        "summary": one.summary,
        "parameters": [*names, *parameters],
        "responses": responses,
    }
    if one.body is not None:
        required = any(
            field.required for field in msgspec.structs.fields(one.body)
        )  # no body is an empty one
        made["requestBody"] = {
            "required": required,
            "content": {"application/json": {"schema": ref(one.body)}},
        }
    return made
