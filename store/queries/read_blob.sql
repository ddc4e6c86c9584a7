-- Nothing changes; one content as it is stored.
SELECT b.data FROM agent.blobs b WHERE b.sha256 = %(sha256)s
