"""What each path answers: reads the body, checks it, has it done, returns the reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from executor_service.gateway import schemas
from executor_service.gateway.datasets import row_of
from executor_service.gateway.errors import Unacceptable, details_of, json_error
from executor_service.gateway.executions import Executions
from executor_service.gateway.judges import DATASETS
from executor_service.gateway.jupyter import (
    JUPYTER_FIELD_NAMES,
    Notebook,
    budget_of_cells,
    execution_of_cells,
    run_jupyter_reply,
)
from executor_service.gateway.replies import at_once_too_late, run_code_reply
from executor_service.gateway.requests import budget_of, compiles, execution_of
from executor_service.gateway.server import Handlers
from executor_service.gateway.submissions import Submissions, judge_of, prompts
from executor_service.server.displayed import DisplayedPrograms

__all__ = ["HOME", "handlers", "openapi"]

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


M = TypeVar("M", bound=BaseModel)
_READ_S = 30.0
"""A client that takes longer to send its body is cut off."""


def handlers(
    executions: Executions, boxed: DisplayedPrograms, *, languages: Collection[str], name: str, queue_s: float
) -> Handlers:
    """`boxed` runs cells, `languages` are those that run here, `name` is this server's, `queue_s` the longest wait in
    queues."""
    submissions = Submissions(executions, queue_s=queue_s)

    def posted(model: type[M], answer: Callable[[M], Awaitable[Any]]) -> Callable[[web.Request], Awaitable[Any]]:
        async def handle(request: web.Request) -> Any:
            return await answer(await _body(request, model, languages))

        return handle

    async def run_code(request: schemas.RunCodeRequest) -> Any:
        execution = execution_of(request)
        for seconds, compiling in ((request.compile_timeout, True), (request.run_timeout, False)):
            if seconds <= 0 and (not compiling or compiles(request.language)):
                return run_code_reply(at_once_too_late(name, compiling=compiling), request.fetch_files)
        result = await executions.run(execution, budget_of(request, queue_s))
        return run_code_reply(result, request.fetch_files)

    async def run_jupyter(request: schemas.RunJupyterRequest) -> Any:
        execution, notebook = execution_of_cells(request), Notebook(boxed, request)
        if request.total_timeout <= 0:
            result = at_once_too_late(name)
        else:
            budget = budget_of_cells(request, queue_s)
            result = await executions.run(execution, budget, JUPYTER_FIELD_NAMES, notebook)
        return run_jupyter_reply(result, request, notebook.cells)

    async def get_prompts(request: schemas.GetPromptsRequest) -> Any:
        return prompts(request)

    async def list_ids(request: schemas.GetPromptsRequest) -> Any:
        return [prompt["id"] for prompt in prompts(request)]

    async def get_prompt_by_id(request: schemas.GetPromptByIdRequest) -> Any:
        return judge_of(request.dataset, request.config).prompt(row_of(request.config), request.config)

    async def get_metrics(request: schemas.GetMetricsRequest) -> Any:
        judge_of(request.dataset, request.config)
        return {}

    async def get_metrics_function(request: schemas.GetMetricsFunctionRequest) -> Any:
        judge_of(request.dataset, request.config)
        return {"function": None}

    return {
        ("GET", "/v1/ping"): _constant("pong"),
        ("GET", "/"): _constant(web.Response, text=HOME, content_type="text/html"),
        ("GET", "/openapi.json"): _constant(openapi(languages)),
        ("GET", "/list_datasets"): _constant(sorted(DATASETS)),
        ("POST", "/run_code"): posted(schemas.RunCodeRequest, run_code),
        ("POST", "/run_jupyter"): posted(schemas.RunJupyterRequest, run_jupyter),
        ("POST", "/list_ids"): posted(schemas.GetPromptsRequest, list_ids),
        ("POST", "/get_prompts"): posted(schemas.GetPromptsRequest, get_prompts),
        ("POST", "/get_prompt_by_id"): posted(schemas.GetPromptByIdRequest, get_prompt_by_id),
        ("POST", "/submit"): posted(schemas.SubmitRequest, submissions.judge),
        ("POST", "/get_metrics"): posted(schemas.GetMetricsRequest, get_metrics),
        ("POST", "/get_metrics_function"): posted(schemas.GetMetricsFunctionRequest, get_metrics_function),
    }


def _constant(body: Any, **arguments: Any) -> Callable[[web.Request], Awaitable[Any]]:
    async def answer(_: web.Request) -> Any:
        return body(**arguments) if arguments else body

    return answer


async def _body(request: web.Request, model: type[M], languages: Collection[str]) -> M:
    """Raises Unacceptable for what is not JSON or not a `model`."""
    try:
        async with asyncio.timeout(_READ_S):
            data = await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unacceptable(json_error(getattr(error, "msg", "") or type(error).__name__)) from None
    try:
        return schemas.checked(model, parsed, languages)
    except ValidationError as error:
        raise Unacceptable(details_of(error)) from None
