-- The handoff of this occasion exists, once.
WITH written AS (
    INSERT INTO agent.handoffs (session_id, task_id, reason, occasion, document, markdown, exam_score)
    VALUES (%(session)s, %(task)s, %(reason)s, %(occasion)s, %(document)s, %(markdown)s, %(score)s)
    ON CONFLICT (occasion) DO NOTHING RETURNING handoff_id, session_id, task_id, reason, exam_score)
SELECT agent.append_event(session_id, task_id, 'handoff.written',
    jsonb_build_object('handoff_id', handoff_id, 'reason', reason, 'exam_score', exam_score)) FROM written
