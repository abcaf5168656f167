"""Arrays in, updates out: one interface, several engines that must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcohort.core.lazy import exports

if TYPE_CHECKING:
    from fedcohort.engines.fused.fused_engine import FusedEngine as FusedEngine
    from fedcohort.engines.interface import ClientData as ClientData
    from fedcohort.engines.interface import Engine as Engine
    from fedcohort.engines.module_translation import translate as translate
    from fedcohort.engines.networks import AvgPool as AvgPool
    from fedcohort.engines.networks import BatchNorm as BatchNorm
    from fedcohort.engines.networks import Conv as Conv
    from fedcohort.engines.networks import Dropout as Dropout
    from fedcohort.engines.networks import Flatten as Flatten
    from fedcohort.engines.networks import GlobalAvgPool as GlobalAvgPool
    from fedcohort.engines.networks import GroupNorm as GroupNorm
    from fedcohort.engines.networks import Linear as Linear
    from fedcohort.engines.networks import MaxPool as MaxPool
    from fedcohort.engines.networks import Network as Network
    from fedcohort.engines.networks import ReLU as ReLU
    from fedcohort.engines.networks import Residual as Residual
    from fedcohort.engines.networks import lenet as lenet
    from fedcohort.engines.networks import mlp as mlp
    from fedcohort.engines.networks import resnet as resnet
    from fedcohort.engines.numpy_engine import NumpyEngine as NumpyEngine
    from fedcohort.engines.torch_reference import ReferenceEngine as ReferenceEngine
    from fedcohort.engines.torch_vmap import VmapEngine as VmapEngine
    from fedcohort.engines.torch_workers.workers_engine import WorkersEngine as WorkersEngine
else:
    __getattr__, __dir__, __all__ = exports(__name__)
