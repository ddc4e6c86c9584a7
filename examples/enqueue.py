"""Give an agent work from your own program. Usage: python examples/enqueue.py DATABASE_URL"""

import sys

import psycopg

from agent.client import AgentClient


def main(database_url: str) -> None:
    with AgentClient(database_url) as client:
        task = client.enqueue("support", "Refund order 17", session="acme-17", user="ana", idempotency_key="mail-8812")
        print(task.result(timeout=60))

        with psycopg.connect(database_url) as connection:  # accepted by your own transaction, or not at all
            connection.execute("CREATE TABLE IF NOT EXISTS orders_done (id int)")
            connection.execute("INSERT INTO orders_done VALUES (17)")
            told = client.enqueue("support", "Tell ana", session="acme-17", user="ana", connection=connection)
        print(told.result(timeout=60))

        for step in task.steps():
            print(step.step, step.name, step.input, step.output if step.kind == "tool" else "")


if __name__ == "__main__":
    main(sys.argv[1])
