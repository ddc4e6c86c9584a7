-- The worker says how its process ended.
SELECT agent.note_end(%(worker)s, %(how)s, %(is_hang)s)
