-- The token stands for nothing.
DELETE FROM agent.sign_ins WHERE hash = %(hash)s
