"""The log of the server side as one JSON object per line, for whatever collects logs.

::

    {"time": "2026-11-16T18:30:00.123+00:00", "level": "info", "logger": "flwr",
     "message": "round 3: asked 10, OK=9 LATE=1", "event": "round", "round": 3, "asked": 10,
     "ok": 9, "late": 1, "failed": 0, "rejected": 0, "filtered": 0}

Events with fields of their own: round, client (why it was not used), registered, refused, resumed, usage. Text that
comes from clients is escaped: a line is a line.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

LOGGERS = ("flwr", "fedcohort")  # Flower's own, which the ServerApp's log shows, and ours


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, logger, message, and the fields of the event.

    >>> record = logging.LogRecord("flwr", logging.INFO, "", 0, "round %d: \\x1b[2Jall is well", (3,), None)
    >>> record.fields = {"event": "round", "round": 3}
    >>> sorted(json.loads(JsonFormatter().format(record)))
    ['event', 'level', 'logger', 'message', 'round', 'time']
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        moment = datetime.fromtimestamp(record.created, UTC)
        body: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage().strip().lstrip("├└─> "),
        }
        if record.exc_info:
            body["error"] = self.formatException(record.exc_info)
        return json.dumps(body | getattr(record, "fields", {}), default=str)


def use_json_logs() -> None:
    """Let every handler of the server side's loggers write JSON; ours gets a handler where it has none."""
    formatter = JsonFormatter()
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not logger.handlers and not logging.getLogger().handlers:
            logger.addHandler(logging.StreamHandler())
        for handler in logger.handlers:
            handler.setFormatter(formatter)
            setattr(handler, "format", formatter.format)  # noqa: B010  Flower's handler formats by itself


def event(name: str, **fields: Any) -> dict[str, Any]:
    """The `extra` of a log call: what a JSON line has beside the message."""
    return {"fields": {"event": name, **fields}}
