from fedcohort.selectors.favor import Favor
from fedcohort.testing import SelectorContract


class TestFavorContract(SelectorContract):
    def make(self):
        return Favor()
