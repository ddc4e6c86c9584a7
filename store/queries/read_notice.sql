-- Nothing changes; one notice.
SELECT * FROM agent.notices WHERE notice_id = %(notice)s
