"""The dashboard: runs in the browser while they go on. Read-only, on loopback, behind a token."""
