-- Browsers that opened the page: their sessions outlive the daemon, so that an open page goes on.
CREATE TABLE page_sessions (
    digest     VARCHAR PRIMARY KEY,
    name       VARCHAR NOT NULL,
    role       VARCHAR NOT NULL CHECK (role IN ('read', 'submit', 'runner', 'admin')),
    token_id   BIGINT,
    port       INTEGER NOT NULL,
    created_at TIMESTAMP NOT NULL,
    expires_at TIMESTAMP NOT NULL
);
COMMENT ON TABLE page_sessions IS 'Browsers that opened the page by a link of ''stoker ui''; only the SHA-256 of their cookies is kept';
COMMENT ON COLUMN page_sessions.digest IS 'SHA-256 of the cookie, hexadecimal';
COMMENT ON COLUMN page_sessions.name IS 'User for whom it acts';
COMMENT ON COLUMN page_sessions.role IS 'What it may do: read, submit, runner or admin';
COMMENT ON COLUMN page_sessions.token_id IS 'Token that asked for its link: revoked, it ends the session; NULL: it was asked for over the socket';
COMMENT ON COLUMN page_sessions.port IS 'TCP port of the page: a daemon that comes back listens there again';
COMMENT ON COLUMN page_sessions.created_at IS 'When the link was used (UTC)';
COMMENT ON COLUMN page_sessions.expires_at IS 'When it ends (UTC)';
