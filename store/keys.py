"""Who may ask over HTTP: keys and sign-ins, of which only hashes are kept."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable

from store.errors import Conflict, InvalidInput, NotFound
from store.plain import is_text
from store.statement import Rows, Statement, all_of, nothing, one_or_none, query
from store.types import KeyCount, KeyHolder, KeyRow

PREFIX = "pdk_"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def new_secret() -> str:
    """256 random bits, as text that needs no quoting anywhere."""
    return secrets.token_urlsafe(32)


def new_key() -> str:
    return PREFIX + new_secret()


def hashed(secret: str) -> bytes:
    """What is kept of a key or a token. They are long and random, so a fast hash keeps them as well as a slow one."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def add(name: str, key: str, *, user: str | None, read_only: bool) -> Statement[None]:
    if not NAME.fullmatch(name):
        raise InvalidInput("the name of a key has 1 to 100 letters, digits, dots, dashes and underscores")
    if user is not None and not (0 < len(user) <= 200 and is_text(user)):
        raise InvalidInput("a user id has 1 to 200 characters")

    def read(rows: Rows) -> None:
        if not rows:
            raise Conflict(f"there is already a key named {name!r}; revoke and forget it first, or choose another name")

    return Statement(query("add_key"), {"name": name, "hash": hashed(key), "user": user, "read_only": read_only}, read)


def list_keys() -> Statement[list[KeyRow]]:
    return Statement(query("list_keys"), {}, all_of(KeyRow))


def revoke(name: str) -> Statement[None]:
    return Statement(query("revoke_key"), {"name": name}, _found(f"there is no key named {name!r}"))


def forget(name: str) -> Statement[None]:
    return Statement(query("forget_key"), {"name": name}, _found(f"there is no revoked key named {name!r}"))


def count_keys() -> Statement[KeyCount]:
    return Statement(query("count_keys"), {}, lambda rows: KeyCount.model_validate(rows[0]))


def find_key(digest: bytes) -> Statement[KeyHolder | None]:
    """The holder of the living key with this hash, whose use is noted."""
    return Statement(query("find_key"), {"hash": digest}, one_or_none(KeyHolder))


def sign_in(token: str, key_digest: bytes, *, seconds: float) -> Statement[None]:
    return Statement(query("sign_in"), {"hash": hashed(token), "key": key_digest, "seconds": seconds}, nothing)


def find_sign_in(digest: bytes) -> Statement[bytes | None]:
    """The hash of the key that a token stands for."""
    return Statement(query("find_sign_in"), {"hash": digest}, lambda rows: bytes(rows[0]["key_hash"]) if rows else None)


def sign_out(digest: bytes) -> Statement[None]:
    return Statement(query("sign_out"), {"hash": digest}, nothing)


def _found(otherwise: str) -> Callable[[Rows], None]:
    def read(rows: Rows) -> None:
        if not rows:
            raise NotFound(otherwise)

    return read
