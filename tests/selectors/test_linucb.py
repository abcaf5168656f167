from fedcohort.selectors.linucb import LinUCB
from fedcohort.testing import SelectorContract


class TestLinUCBContract(SelectorContract):
    def make(self):
        return LinUCB()
