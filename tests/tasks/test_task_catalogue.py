"""Names, sizes and overrides of the catalogue."""

import numpy as np
import pytest

from fedcohort.engines import losses as objectives
from fedcohort.engines.networks import Network, Residual, lenet
from fedcohort.errors import BadParameter, ConfigError, UnknownName
from fedcohort.registry.lookup import make_task_spec
from fedcohort.tasks import catalogue

PROMISED = (
    "digits-mlp digits-cnn mnist-cnn cifar10-cnn cifar10-vgg11 cifar10-resnet18 "
    "femnist-cnn har-gru mobifall-gru quadratic"
)
COUNTS = {
    "digits-softmax": 650,
    "digits-mlp": 2_410,
    "mnist-cnn-flashrl": 582_026,
    "cifar10-cnn": 62_006,
    "cifar10-cnn-flashrl": 108_098,
    "cifar10-cnn-wide": 878_538,
}


WRONG_KIND = ({"lr": "fast"}, {"epochs": 1.5}, {"hidden": "wide"}, {"batch_size": True})


def test_every_name_of_the_design_and_a_line_on_each():
    assert set(PROMISED.split()) <= set(catalogue.names())
    for name in catalogue.names():
        assert len(catalogue.about(name)) > 20
        assert catalogue.get(name).name == name


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_those_of_the_papers(name):
    assert catalogue.get(name).model.n_params == COUNTS[name]


def test_descriptions_tell_the_true_count():
    for name in catalogue.names():
        model = getattr(catalogue.get(name), "model", None)
        if isinstance(model, Network) and "parameters" in catalogue.about(name):
            assert f"{model.n_params:,} parameters" in catalogue.about(name)


def test_overrides():
    spec = catalogue.get("digits-mlp", lr=0.01, epochs=2, hidden=(5, 4), validation=0.3, objective="flash-robust")
    assert (spec.default.lr, spec.default.epochs, spec.validation) == (0.01, 2, 0.3)
    assert spec.default.objective == objectives.flash_robust()
    assert spec.model.n_params == 65 * 5 + 6 * 4 + 5 * 10
    assert catalogue.get("digits-mlp", hidden=7).model.n_params == 65 * 7 + 8 * 10
    quadratic = catalogue.get("quadratic", dimension=3, lr=0.5)
    assert quadratic.default.lr == 0.5
    assert quadratic.dimension == 3


def test_refusals_name_the_nearest():
    with pytest.raises(UnknownName, match="digits-mlp"):
        catalogue.get("digit-mlp")
    with pytest.raises(UnknownName, match="momentum"):
        catalogue.get("digits-mlp", momentun=0.9)
    with pytest.raises(UnknownName, match="hidden"):
        catalogue.get("har-gru", hiden=9)
    with pytest.raises(UnknownName, match="dimension"):
        catalogue.get("quadratic", dimensions=9)
    for bad in ({"lr": 0.0}, {"batch_size": 0}, {"momentum": -1.0}, {"validation": 2.0}, {"hidden": (0,)}, *WRONG_KIND):
        with pytest.raises(BadParameter):
            catalogue.get("digits-mlp", **bad)
    with pytest.raises(BadParameter, match="one of sgd, adam"):
        catalogue.get("digits-mlp", optimiser="adm")


def test_digits_pool_is_what_is_left():
    spec = catalogue.get("digits-mlp")
    assert len(spec.data.y_test) + len(spec.parts.validation) + spec.labels().size == 1797
    assert np.bincount(spec.labels()).min() > 110
    assert spec.owners() is None
    assert spec.pool.shape == (spec.labels().size, 64)
    assert float(spec.pool.max()) == 1.0


def test_normalisation_is_an_option_and_none_is_the_default():
    plain = catalogue.get("cifar10-cnn").model
    assert plain == lenet((3, 32, 32), (6, 16), 5, (120, 84), 10)
    assert plain.n_buffers == 0
    assert catalogue.get("cifar10-cnn", norm="batch").model.n_buffers == 2 * (6 + 16)
    assert catalogue.get("cifar10-cnn", norm="group").model.n_params == plain.n_params + 2 * (6 + 16)
    twenty = catalogue.get("cifar10-resnet8", blocks=3, norm="batch").model
    assert sum(isinstance(layer, Residual) for layer in twenty.layers) == 9
    with pytest.raises(UnknownName, match="batsh"):
        catalogue.get("cifar10-resnet8", norm="batsh")
    with pytest.raises(BadParameter, match="blocks = 0"):
        catalogue.get("cifar10-resnet8", blocks=0)


def test_torch_models_are_made_when_bound(make_world):
    pytest.importorskip("torch")
    factory = catalogue.get("har-gru", hidden=8).model
    assert sum(p.numel() for p in factory().parameters()) == 3 * 8 * (6 + 10) + 3 * 8 * (8 + 10) + 9 * 6
    assert catalogue.get("cifar10-resnet18", norm="batch").model.keywords["norm"] == "batch"


@pytest.mark.parametrize(
    "text",
    [
        "digits-mlp(seed=-1)",
        "digits-mlp(seed=1.5)",
        "digits-mlp(seed='a')",
        "digits-mlp(validation='a')",
        "digits-mlp(normal=3)",
        "digits-mlp(normal=(0, 'a'))",
        "digits-mlp(split=3)",
        "digits-mlp(root=3)",
        "quadratic(seed=-1)",
        "quadratic(classes=0)",
        "quadratic(pool='a')",
        "quadratic(curvature=1)",
        "quadratic(curvature=(2, 1))",
        "quadratic(spread='a')",
    ],
)
def test_values_of_the_wrong_kind_are_refused_by_name(text):
    parameter = text.partition("(")[2].partition("=")[0]
    with pytest.raises(ConfigError, match=parameter):
        make_task_spec(text)


@pytest.mark.parametrize(
    "text",
    [
        *("digits-mlp(hidden=0.5)", "digits-cnn(channels=None)", "digits-mlp(hidden=True)", "digits-mlp(hidden={1})"),
        *("cifar10-cnn(norm=1)", "cifar10-cnn(norm=[[1]])", "cifar10-resnet8(widths=[])", "cifar10-vgg11(norm=7)"),
        *("har-gru(hidden=-1)", "har-gru(hidden=1000000000000)", "har-gru(stride=0)", "mobifall-gru(stride='x')"),
        *("quadratic(dimension=1000000000000)", "quadratic(pool=1000000000000)", "digits-mlp(objective=3)"),
        *(
            "quadratic(dimension=1000000, classes=100000)",
            "quadratic(spread=1e308)",
            "digits-mlp(epochs=1000000000000)",
        ),
        *("digits-mlp(hidden=(100000, 100000))", f"digits-mlp(hidden={[8] * 101})", "digits-mlp(batch_size=1e999)"),
    ],
)
def test_absurd_values_are_refused_before_memory_is_taken(text):
    with pytest.raises(ConfigError) as caught:
        make_task_spec(text)
    assert len(str(caught.value)) < 500


def test_every_task_says_what_it_is():
    for name in catalogue.names():
        assert len(catalogue.get(name).about) > 10


def test_every_option_has_a_meaning():
    known = {option for name in catalogue.names() for option in catalogue.options(name)}
    assert known == set(catalogue.MEANINGS)
