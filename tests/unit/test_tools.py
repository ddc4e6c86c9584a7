"""What tools say about themselves."""

from __future__ import annotations

from typing import Any

import pytest

from agent import effect, idempotency_key, pure
from agent.tools import UNMARKED, Effect, Pure, policy_of


def test_marks_are_read_back() -> None:
    def check() -> bool:
        return True

    @pure
    def reads() -> None: ...

    @effect(in_doubt="verify", verify=check)
    def changes() -> None: ...

    def silent() -> None: ...

    assert policy_of(reads) == Pure()
    assert policy_of(changes) == Effect("verify", check)
    assert policy_of(silent) == UNMARKED == Effect("report")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"in_doubt": "maybe"}, "allowed are retry, verify, ask, report"),
        ({"in_doubt": "verify"}, "go together"),
        ({"in_doubt": "retry", "verify": print}, "go together"),
    ],
)
def test_a_wrong_mark_is_refused_where_it_stands(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        effect(**arguments)


def test_a_key_is_known_only_inside_a_tool() -> None:
    with pytest.raises(RuntimeError, match="only inside a tool"):
        idempotency_key()
