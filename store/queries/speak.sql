-- The person's words are part of the conversation.
SELECT agent.speak(%(session)s, %(person)s, %(words)s)
