"""Agents are found by name, and what is wrong with a reference is said in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability

from agent.registry import describe, load_agents
from store.errors import Misconfigured

nameless = Agent("test")
twin_a = Agent("test", name="twin")
twin_b = Agent("test", name="twin")
not_an_agent = "just text"
own_durability = Agent("test", name="own", capabilities=[DBOSDurability()])

HERE = "tests.unit.test_registry"


@pytest.mark.parametrize(
    ("references", "says"),
    [
        (["no.such.module:x"], "There is no module 'no.such.module'"),
        ([f"{HERE}:missing"], f"The module {HERE} has no attribute 'missing'"),
        ([f"{HERE}:not_an_agent"], "is a str, not a Pydantic AI Agent"),
        ([f"{HERE}:nameless"], "has no name: give it one"),
        ([f"{HERE}:twin_a", f"{HERE}:twin_b"], "Two agents are named 'twin'"),
        ([f"{HERE}:own_durability"], "carries a durability of its own"),
        (["justaword"], "PERDURE_AGENTS is 'justaword'; allowed is package.module:attribute"),
        (["missing.yaml"], "There is no agent spec file 'missing.yaml'"),
    ],
)
def test_a_wrong_reference_is_one_sentence(references: list[str], says: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        load_agents(references)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_module_that_fails_to_import_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_broken.py").write_text("import a_module_nobody_has\n")
    (tmp_path / "wholly_broken.py").write_text("1 / 0\n")
    with pytest.raises(Misconfigured, match="need the module 'a_module_nobody_has'"):
        load_agents(["half_broken:x"])
    with pytest.raises(Misconfigured, match="Importing wholly_broken failed: ZeroDivisionError: division by zero"):
        load_agents(["wholly_broken:x"])


def test_a_spec_file_is_an_agent(tmp_path: Path) -> None:
    spec = tmp_path / "helper.yaml"
    spec.write_text("model: test\nname: helper\ninstructions: Be brief.\n")
    assert list(load_agents([str(spec)])) == ["helper"]
    spec.write_text("model: test\nname: [\n")
    with pytest.raises(Misconfigured, match="cannot be used"):
        load_agents([str(spec)])


def test_agents_are_described_with_their_tools() -> None:
    cards = describe(load_agents(["agent.demo.agents:researcher"]))
    assert cards[0].name == "researcher"
    assert "publish_report" in cards[0].tools
