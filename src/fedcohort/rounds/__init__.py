"""The round: session, roster, engine, policy, validation, replay, history. No transport, no framework."""
