"""The example agent, with its outside world in the test's folder."""

from examples import support as example
from tests.faults import folder

example.LEDGER = folder() / "refunds.jsonl"
support = example.support
