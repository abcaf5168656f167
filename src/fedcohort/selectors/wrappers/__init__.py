"""Around any selector: warm-up, exploration, quotas, floors, caps, cool-down, blocklist."""
