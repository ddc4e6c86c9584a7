-- The handoff says what its agent's model added; its facts and its score stay.
UPDATE agent.handoffs SET document = %(document)s, markdown = %(markdown)s WHERE occasion = %(occasion)s
