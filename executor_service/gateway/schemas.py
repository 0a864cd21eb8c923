"""Requests of SandboxFusion's clients, with its names, defaults and coercions.

Unknown fields are ignored; numbers may come as text, as pydantic allows. Two rules are stricter than SandboxFusion's:
text has to be valid Unicode, and numbers finite. One is laxer: the language defaults to python.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from executor_service.wire.validation import MAX_CODE

M = TypeVar("M", bound=BaseModel)
_MOST_ENTRIES, _MOST_ROWS = 1024, 10_000
"""Most entries of a list or an object that a client sends, and most rows."""


def _unicode(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("string_unicode", "Input should be valid Unicode, without lone surrogates") from None
    return value


def _installed(value: str, info: ValidationInfo) -> str:
    languages = sorted(info.context or ())
    if value not in languages:
        *others, last = (repr(each) for each in languages)
        expected = f"{', '.join(others)} or {last}" if others else last
        raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
    return value


def _few(value: object, most: int = _MOST_ENTRIES) -> object:
    """Before the entries are looked at: each that is bad would become an entry of the answer."""
    if isinstance(value, list | dict) and len(value) > most:
        problem = "Input should have at most {most} entries, not {has}"
        raise PydanticCustomError("too_long", problem, {"most": most, "has": len(value)})
    return value


def _rows(value: object) -> object:
    """As `_few`, for lists that may be long: of those that are no rows the first is named."""
    rows: Any = _few(value, _MOST_ROWS) if isinstance(value, list) else ()
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise PydanticCustomError("dict_type", "Entry {index} should be a valid dictionary", {"index": index})
    return value


Text = Annotated[str, AfterValidator(_unicode)]
Source = Annotated[Text, Field(max_length=MAX_CODE)]
"""No program is longer."""
Language = Annotated[str, AfterValidator(_installed)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]
Id = int | Text
Few, Rows = BeforeValidator(_few), BeforeValidator(_rows)


class _Request(BaseModel):
    model_config = ConfigDict(populate_by_name=True)


class _RunRequest(_Request):
    memory_limit_mb: int = Field(
        -1, alias="memory_limit_MB", description="Resident memory of all its processes, MiB; up to 0: the default."
    )
    files: Annotated[dict[Text, Text | None], Few] = Field(
        {}, description="Path in the work folder -> content in base64."
    )
    fetch_files: Annotated[list[Text], Few] = Field([], description="Paths of files to return.")


class RunCodeRequest(_RunRequest):
    """POST /run_code."""

    code: Text = Field(description="The source of a program.")
    language: Language = Field("python", description="The language that it is written in.")
    compile_timeout: Seconds = Field(10.0, description="Wall time for compiling, seconds.")
    run_timeout: Seconds = Field(10.0, description="Wall time of the program, seconds; queues are not charged.")
    stdin: Text | None = Field(None, description="Standard input; null: at its end.")


class RunJupyterRequest(_RunRequest):
    """POST /run_jupyter."""

    cells: Annotated[list[Text], Few] = Field(description="Cells, run one after the other in one interpreter.")
    cell_timeout: Seconds = Field(0.0, description="Wall time of each cell, seconds; up to 0: what is left in total.")
    total_timeout: Seconds = Field(45.0, description="Wall time of all cells together, seconds.")
    kernel: Literal["python3"] = "python3"


class TestConfig(_Request):
    """Settings for judging a completion. The rows come with the request: this server has no data of its own."""

    __test__ = False

    dataset_type: str | None = Field(None, description="Judge to use for a dataset that is not registered.")
    language: Language | None = None
    locale: str | None = None
    is_fewshot: bool | None = None
    compile_timeout: Seconds | None = None
    run_timeout: Seconds | None = None
    custom_extract_logic: Source | None = Field(None, description="Python source; it runs in a sandbox.")
    provided_data: Annotated[list[dict[str, Any]] | dict[str, Any] | None, Rows] = None
    extra: dict[str, Any] = {}


class DatasetRequest(_Request):
    """POST /get_metrics_function, and what its neighbours have in common."""

    dataset: Text
    config: TestConfig


class GetPromptsRequest(DatasetRequest):
    """POST /get_prompts and /list_ids."""

    offset: int = 0
    limit: int = 1_000_000


class GetPromptByIdRequest(DatasetRequest):
    """POST /get_prompt_by_id."""

    id: Id


class SubmitRequest(DatasetRequest):
    """POST /submit."""

    id: Id
    completion: Source


class GetMetricsRequest(DatasetRequest):
    """POST /get_metrics."""

    results: Annotated[list[dict[str, Any]], Rows]


def checked(model: type[M], body: object, languages: Collection[str]) -> M:
    """`body` as `model`; pydantic.ValidationError with every field that is not acceptable."""
    return model.model_validate(body, from_attributes=True, context=languages)
