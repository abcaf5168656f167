from fedcohort.selectors.flash import Flash
from fedcohort.testing import SelectorContract


class TestFlashContract(SelectorContract):
    def make(self):
        return Flash()
