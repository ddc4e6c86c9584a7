"""The manifest is the newest row of each path in the session's past, however that past is pieced together."""

from __future__ import annotations

import psycopg
import pytest

from store.errors import Unusable
from store.files import describe, packed, unpacked

PAST = """
CREATE OR REPLACE FUNCTION agent.past(of_session text)
RETURNS TABLE (session_id text, after bigint, through bigint) LANGUAGE sql STABLE AS $$
    SELECT p.* FROM (VALUES {rows}) AS p (session_id, after, through)
$$
"""


@pytest.fixture
def changes(db: psycopg.Connection) -> psycopg.Connection:
    """A parent with four changes and a child with two."""
    db.execute("INSERT INTO agent.sessions (session_id, agent) VALUES ('parent', 'a'), ('child', 'a')")
    for session, seq, path, content in [
        ("parent", 1, "a", b"a1"),
        ("parent", 2, "b", b"b2"),
        ("parent", 3, "a", b"a3"),
        ("parent", 4, "b", None),
        ("child", 1, "c", b"c1"),
        ("child", 2, "a", b"child"),
    ]:
        file = describe(path, content) if content is not None else None
        if file is not None and content is not None:
            db.execute("INSERT INTO agent.blobs VALUES (%s, %s, %s)", (file.sha256, file.size, packed(content)))
        db.execute(
            "INSERT INTO agent.files (session_id, path, seq, sha256, size) VALUES (%s, %s, %s, %s, %s)",
            (session, path, seq, file.sha256 if file else None, file.size if file else 0),
        )
    return db


@pytest.mark.parametrize(
    ("past", "through", "expected"),
    [
        ("('parent', 0::bigint, NULL::bigint)", None, {"a": b"a3"}),
        ("('parent', 0::bigint, 2::bigint)", None, {"a": b"a1", "b": b"b2"}),
        ("('parent', 0::bigint, 1::bigint), ('parent', 3, NULL)", None, {"a": b"a1"}),
        ("('parent', 0::bigint, 3::bigint), ('child', 0, NULL)", None, {"a": b"child", "b": b"b2", "c": b"c1"}),
        ("('parent', 0::bigint, 3::bigint), ('child', 0, NULL)", 1, {"a": b"a3", "b": b"b2", "c": b"c1"}),
        ("('child', 0::bigint, NULL::bigint), ('parent', 0, 1)", None, {"a": b"a1", "c": b"c1"}),
    ],
    ids=["whole", "up to a point", "rewound", "forked", "forked, as it was", "later segments win"],
)
def test_the_manifest_follows_the_past(
    changes: psycopg.Connection, past: str, through: int | None, expected: dict[str, bytes]
) -> None:
    changes.execute(PAST.format(rows=past))
    rows = changes.execute("SELECT path, sha256, size FROM agent.manifest('child', %s)", (through,)).fetchall()
    assert {path: (sha256, size) for path, sha256, size in rows} == {
        path: (describe(path, content).sha256, len(content)) for path, content in expected.items()
    }


def test_a_content_comes_back_whole_or_is_called_damaged() -> None:
    for content in (b"", b"x", b"\0" * 1_000_000):
        file = describe("f", content)
        assert unpacked(packed(content), file) == content
    for data in (b"", b"nonsense", packed(b"other")):
        with pytest.raises(Unusable, match="damaged"):
            unpacked(data, describe("f", b"x"))


def test_only_the_owner_of_the_task_saves(changes: psycopg.Connection) -> None:
    with pytest.raises(psycopg.Error) as caught:
        changes.execute("SELECT agent.save_file('no task', 'nobody', 'x', NULL, 0, NULL)")
    assert caught.value.sqlstate == "PD001"
