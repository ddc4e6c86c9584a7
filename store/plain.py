"""Values as plain JSON data, in the form Postgres can hold and people can read."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python


class CannotStore(TypeError):
    """A value has no JSON form."""


class CannotLoad(Exception):
    """A recorded value means nothing to this release."""


def storable(value: Any) -> Any:
    """The value as plain JSON data, which is also how a model is shown it."""
    try:
        plain = to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings")
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise CannotStore(f"{type(value).__name__} has no JSON form: {_first_line(error)}") from error
    return readable(plain)


def readable(plain: Any) -> Any:
    """JSON data without what Postgres cannot hold: NUL characters and halves of surrogate pairs."""
    match plain:
        case str():
            if plain.isascii() and "\0" not in plain:
                return plain
            return plain.replace("\0", "\u2400").encode("utf-8", "replace").decode("utf-8")
        case dict():
            return {readable(str(key)): readable(item) for key, item in plain.items()}
        case list():
            return [readable(item) for item in plain]
        case float() if plain != plain or plain in (float("inf"), float("-inf")):
            return str(plain)
        case _:
            return plain


def is_text(given: str) -> bool:
    """Whether Postgres can hold it as it is."""
    try:
        given.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in given


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200]
