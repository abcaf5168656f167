"""A process of the torch_workers engine: reads instructions from one stream, writes updates to another."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

from fedcohort.engines.torch_workers import messages as wire
from fedcohort.errors import FedcohortError


def serve(source: IO[bytes], sink: IO[bytes], engine: Any) -> None:
    """Train what is asked for until the other side closes the stream."""
    wire.send(sink, {"ready": True}, {})
    while True:
        try:
            text, arrays = wire.receive(source)
        except EOFError:
            return
        try:
            wire.send(sink, *wire.carry_out(engine, text, arrays))
        except FedcohortError as error:
            wire.send(sink, {"error": [error.value, error.rule, error.remedy]}, {})


def main() -> None:
    """A process that starts with nothing: standard input and output are the streams."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get into the stream
    first, _ = wire.receive(source)
    sys.path[:] = first["path"]
    from fedcohort.engines.torch_workers.variant import Variant, VariantEngine

    data = wire.data_of(wire.attach(first["folder"]), first["classes"])
    serve(source, sink, VariantEngine(wire.build(first["model"]), data, Variant(**first["variant"])))


if __name__ == "__main__":
    main()
