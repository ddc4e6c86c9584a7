-- Every word for the running task has its place in the conversation.
SELECT agent.deliver_steers(%(task)s, %(owner)s, %(place)s)
