from fedcohort.selectors.neural_bandit import NeuralBandit
from fedcohort.testing import SelectorContract


class TestNeuralBanditContract(SelectorContract):
    def make(self):
        return NeuralBandit()
