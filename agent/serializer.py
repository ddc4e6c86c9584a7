"""What DBOS stores for us, as JSON that people and SQL can read.

Plain data is stored as it is. Anything else is tagged, `{"$": "package.module:Class", "v": …}`, and goes
through pydantic both ways. Loading looks a class up among the modules already imported and validates;
it never imports, calls or unpickles what a row names.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from dbos import DBOSClient
from dbos._error import DBOSMaxStepRetriesExceeded, DBOSStepTimeoutError
from dbos._serialization import Serializer
from pydantic import BaseModel, TypeAdapter
from pydantic_ai import exceptions as failures
from pydantic_ai.messages import ToolReturn, is_multi_modal_content
from pydantic_core import PydanticSerializationError

from store.plain import CannotLoad, CannotStore, readable, storable

TAG, VALUE = "$", "v"


class RecordedError(Exception):
    """An error of an earlier execution, as it was recorded: its type's name and its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class JsonSerializer(Serializer):
    def name(self) -> str:
        return "perdure_json"

    def serialize(self, data: Any) -> str:
        return json.dumps(encode(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    def deserialize(self, serialized_data: str) -> Any:
        try:
            return decode(json.loads(serialized_data))
        except Exception as error:
            raise CannotLoad(f"a recorded value cannot be loaded any more: {_one_line(error)}") from error


def encode(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return storable(value)
        case list():
            return [encode(item) for item in value]
        case dict() if all(isinstance(key, str) for key in value) and TAG not in value:
            return {readable(key): encode(item) for key, item in value.items()}
        case dict():
            return {TAG: "dict", VALUE: [[encode(key), encode(item)] for key, item in value.items()]}
        case tuple() | set() | frozenset():
            return {TAG: type(value).__name__, VALUE: [encode(item) for item in value]}
        case bytes():
            return {TAG: "bytes", VALUE: base64.b64encode(value).decode()}
        case BaseException():
            return _encode_error(value)
        case _:
            return _encode_object(value)


def decode(stored: Any) -> Any:
    match stored:
        case list():
            return [decode(item) for item in stored]
        case {"$": str(tag)} if VALUE in stored or tag == "error":
            return _decode_tagged(tag, stored)
        case dict():
            return {key: decode(item) for key, item in stored.items()}
        case _:
            return stored


SIMPLE: dict[str, type[Any]] = {kind.__name__: kind for kind in (datetime, date, timedelta, Decimal, UUID)}


def pack(value: Any) -> Any:
    """What a tool returned, as JSON data: pictures keep their type, everything else is as a model sees it."""
    match value:
        case list() | tuple():
            return [pack(item) for item in value]
        case ToolReturn():
            return _encode_object(value)
        case _ if is_multi_modal_content(value):
            return _encode_object(value)
        case _:
            return encode(storable(value))


def unpack(stored: Any) -> Any:
    return decode(stored)


def _encode_object(value: Any) -> Any:
    kind: type[Any] = type(value)
    if kind.__name__ in SIMPLE and SIMPLE[kind.__name__] is kind:
        return {TAG: kind.__name__, VALUE: _adapter(kind).dump_python(value, mode="json")}
    if not (isinstance(value, BaseModel) or dataclasses.is_dataclass(value)):
        raise CannotStore(f"{kind.__module__}.{kind.__qualname__} has no JSON form")
    try:
        plain = _adapter(kind).dump_python(value, mode="json")
    except (PydanticSerializationError, ValueError) as error:
        raise CannotStore(f"{kind.__qualname__} has no JSON form ({error})") from error
    return {TAG: f"{kind.__module__}:{kind.__qualname__}", VALUE: readable(plain)}


def _decode_tagged(tag: str, stored: dict[str, Any]) -> Any:
    if tag == "error":
        return _decode_error(stored)
    payload = stored[VALUE]
    match tag:
        case "dict":
            return {decode(key): decode(item) for key, item in payload}
        case "bytes":
            return base64.b64decode(payload)
        case "tuple":
            return tuple(decode(item) for item in payload)
        case "set":
            return {decode(item) for item in payload}
        case "frozenset":
            return frozenset(decode(item) for item in payload)
        case _:
            return _adapter(SIMPLE.get(tag) or _find_class(tag)).validate_python(payload)


def _find_class(tag: str) -> type[Any]:
    module, _, path = tag.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and (issubclass(found, BaseModel) or dataclasses.is_dataclass(found)):
        return found
    raise CannotStore(f"the recorded type {tag} is not known to this release")


_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


# Errors whose kind decides what happens next come back as themselves; the rest as RecordedError.
CATEGORIES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        failures.ModelRateLimitError,
        failures.ModelQuotaExceededError,
        failures.ModelOverloadedError,
        failures.ModelUnavailableError,
        failures.ModelServerError,
        failures.ModelContextWindowExceededError,
        failures.ModelAuthenticationError,
        failures.ModelNotFoundError,
        failures.ModelRequestRejectedError,
    )
}


def explain(error: BaseException) -> tuple[str, str]:
    """The kind and the message of what went wrong, the same whether it happens now or is read back."""
    if isinstance(error, DBOSMaxStepRetriesExceeded) and error.errors:
        error = error.errors[-1]
    if isinstance(error, RecordedError):
        return error.kind, str(error)
    if isinstance(error, DBOSStepTimeoutError):
        return "Timeout", f"no answer within {error.timeout_seconds:g} s"
    return type(error).__name__, readable(str(error)[:4000]) or type(error).__name__


def _encode_error(error: BaseException) -> Any:
    kind, message = explain(error)
    if isinstance(error, DBOSMaxStepRetriesExceeded) and error.errors:
        error = error.errors[-1]
    data: dict[str, Any] = {}
    if isinstance(error, failures.ModelHTTPError):
        category = next((name for name, known in CATEGORIES.items() if isinstance(error, known)), None)
        data = {"status": error.status_code, "model": error.model_name, "body": _body(error.body), "category": category}
    return {TAG: "error", "kind": kind, "message": message, "data": data}


def _decode_error(stored: dict[str, Any]) -> Exception:
    match stored["data"]:
        case {"status": status, "model": model, "body": body, "category": category}:
            return failures.ModelHTTPError.for_category(
                CATEGORIES.get(category), status_code=status, model_name=model, body=body
            )
        case _:
            return RecordedError(stored["kind"], stored["message"])


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _body(body: object) -> Any:
    try:
        return storable(body)
    except CannotStore:
        return readable(str(body))


def client(url: str) -> DBOSClient:
    """DBOS's own client, reading rows the way this service writes them."""
    return DBOSClient(system_database_url=url, serializer=JsonSerializer())
