"""A worker process of the batched engine: reads orders from standard input, writes updates to standard output."""

from __future__ import annotations

import os
import sys

from fedcohort.engines.torch_workers import messages as wire
from fedcohort.errors import FedcohortError


def main() -> None:
    """Serve until the other side closes the stream."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get into the stream
    said, _ = wire.receive(source)
    sys.path[:] = said["path"]
    from fedcohort.engines.torch_workers.variant import Variant, VariantEngine

    data = wire.data_of(wire.attach(said["folder"]), said["classes"])
    engine = VariantEngine(wire.build(said["model"]), data, Variant(**said["variant"]))
    wire.send(sink, {"ready": True}, {})
    while True:
        try:
            text, arrays = wire.receive(source)
        except EOFError:
            return
        try:
            wire.send(sink, *wire.pack_trained(engine.train(*wire.unpack_plan(text, arrays))))
        except FedcohortError as error:
            wire.send(sink, {"error": [error.value, error.rule, error.remedy]}, {})


if __name__ == "__main__":
    main()
