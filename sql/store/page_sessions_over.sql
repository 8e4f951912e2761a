-- Sessions of the page that are over. $1: now (s since the epoch).
SELECT digest FROM page_sessions WHERE epoch(expires_at) <= $1
