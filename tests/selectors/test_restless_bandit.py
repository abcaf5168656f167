from fedcohort.selectors.restless_bandit import RestlessBandit
from fedcohort.testing import SelectorContract


class TestRestlessBanditContract(SelectorContract):
    def make(self):
        return RestlessBandit()
