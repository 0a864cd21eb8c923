"""The interface as OpenAPI 3.1, made of the schemas that requests are checked with, and a page for people."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from executor_service.gateway import schemas

__all__ = ["HOME", "openapi"]

HOME = """<!DOCTYPE html>
<html lang="en"><head><meta charset="UTF-8"><title>fairbox</title></head>
<body><p>The SandboxFusion interface of a fairbox executor: <a href="openapi.json">openapi.json</a>.</p></body></html>
"""
_POSTS: dict[str, tuple[type[BaseModel], str]] = {
    "/run_code": (schemas.RunCodeRequest, "Runs one program."),
    "/run_jupyter": (schemas.RunJupyterRequest, "Runs cells in one interpreter."),
    "/list_ids": (schemas.GetPromptsRequest, "Ids of the rows of config.provided_data."),
    "/get_prompts": (schemas.GetPromptsRequest, "Prompts for the rows of config.provided_data."),
    "/get_prompt_by_id": (schemas.GetPromptByIdRequest, "The prompt for the row in config.provided_data."),
    "/submit": (schemas.SubmitRequest, "Judges a completion against the row in config.provided_data."),
    "/get_metrics": (schemas.GetMetricsRequest, "Always empty: no judge of this server has metrics of its own."),
    "/get_metrics_function": (schemas.GetMetricsFunctionRequest, "Always null, for the same reason."),
}
_GETS = {
    "/v1/ping": "Answers pong.",
    "/list_datasets": "Data sets whose judge is known by their name.",
}
_STATUSES = {
    "200": "The reply.",
    "400": "A data set, a judge or a row that this server can't work with.",
    "401": "The token is missing or wrong.",
    "413": "The body is too large.",
    "422": "A field is not acceptable; detail names each.",
    "504": "Not done, for reasons that are not the program's; ask again.",
}


def openapi(languages: Collection[str]) -> dict[str, Any]:
    models = {model for model, _ in _POSTS.values()}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, definitions = models_json_schema(
        [(model, "validation") for model in ordered], ref_template="#/components/schemas/{model}"
    )
    components = definitions.get("$defs", {})
    components["RunCodeRequest"]["properties"]["language"]["enum"] = sorted(languages)
    responses = {status: {"description": text} for status, text in _STATUSES.items()}
    paths: dict[str, Any] = {
        path: {"get": {"summary": text, "responses": {"200": responses["200"]}}} for path, text in _GETS.items()
    }
    for path, (model, text) in _POSTS.items():
        schema = {"$ref": f"#/components/schemas/{model.__name__}"}
        content = {"application/json": {"schema": schema}}
        body = {"required": True, "content": content}
        paths[path] = {"post": {"summary": text, "requestBody": body, "responses": responses}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "fairbox: SandboxFusion interface", "version": "1"},
        "paths": paths,
        "components": {"schemas": components},
    }
