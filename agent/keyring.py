"""Which keys there are, remembered for a moment: a request costs no round trip, a revocation takes hold in seconds."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from agent.config import is_loopback
from store import keys
from store.database import Database

REMEMBERED = 3.0
"""Seconds for which an answer of the database is believed."""

MOST_REMEMBERED = 10_000

SIGNED_IN = 12 * 3600.0
"""Seconds after which the console asks for the key again."""


@dataclass(frozen=True)
class Caller:
    """Who asks. Without a user, they see everybody's sessions."""

    name: str
    user: str | None = None
    is_read_only: bool = False

    def sees(self, user: str | None) -> bool:
        return self.user is None or self.user == user


ANYBODY = Caller("anybody on this machine")


@dataclass
class Keyring:
    """`given` are the environment's keys; `is_public` means that others than this machine can reach us."""

    database: Database
    given: Sequence[str] = ()
    is_public: bool = False
    clock: Callable[[], float] = time.monotonic
    _known: dict[bytes, tuple[float, Caller | None]] = field(default_factory=dict)
    _made: tuple[float, bool] | None = None

    async def needs_key(self) -> bool:
        """Whether nobody is answered without one: where one was given or ever made, and where others can reach us."""
        if self.given or self.is_public:
            return True
        now = self.clock()
        if self._made is None or self._made[0] < now:
            count = await self.database.try_once(keys.count_keys())
            self._made = (now + REMEMBERED, count.made > 0)
        return self._made[1]

    async def may_scrape(self, headers: Mapping[str, str]) -> bool:
        """Whether whoever sends these headers may read what is counted of everybody; for a worker without the rest."""
        if not await self.needs_key():  # then only this machine reaches us, unless a page has a name made to point here
            return is_loopback(urlsplit(f"//{headers.get('host', '')}").hostname or "")
        scheme, _, key = headers.get("authorization", "").partition(" ")
        caller = await self.find(key.strip()) if scheme.lower() == "bearer" else None
        return caller is not None and caller.user is None

    async def find(self, key: str) -> Caller | None:
        """Whose key this is."""
        return await self._find(keys.hashed(key))

    async def find_signed_in(self, token: str) -> Caller | None:
        """Whose sign-in this is, as long as it and its key are good."""
        digest = keys.hashed(token)
        if (known := self._remembered(digest)) is not None:
            return known[1]
        key = await self.database.try_once(keys.find_sign_in(digest))
        return self._remember(digest, await self._find(key) if key is not None else None)

    async def sign_in(self, key: str) -> str | None:
        """A token that stands for the key, for a while."""
        digest = keys.hashed(key)
        if await self._find(digest) is None:
            return None
        token = keys.new_secret()
        await self.database.try_once(keys.sign_in(token, digest, seconds=SIGNED_IN))
        return token

    async def sign_out(self, token: str) -> None:
        digest = keys.hashed(token)
        await self.database.try_once(keys.sign_out(digest))
        self._known.pop(digest, None)

    async def _find(self, digest: bytes) -> Caller | None:
        if any(hmac.compare_digest(digest, keys.hashed(given)) for given in self.given):
            return Caller("PERDURE_API_KEYS")
        if (known := self._remembered(digest)) is not None:
            return known[1]
        found = await self.database.try_once(keys.find_key(digest))
        if found is None or not hmac.compare_digest(found.hash, digest):
            return self._remember(digest, None)
        return self._remember(digest, Caller(found.name, found.user_id, found.is_read_only))

    def _remembered(self, digest: bytes) -> tuple[float, Caller | None] | None:
        known = self._known.get(digest)
        return known if known is not None and known[0] >= self.clock() else None

    def _remember(self, digest: bytes, caller: Caller | None) -> Caller | None:
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[digest] = (self.clock() + REMEMBERED, caller)
        return caller
