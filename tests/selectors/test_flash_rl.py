from fedcohort.selectors.flash_rl import FlashRL
from fedcohort.testing import SelectorContract


class TestFlashRLContract(SelectorContract):
    def make(self):
        return FlashRL()


class TestSharedContract(SelectorContract):
    def make(self):
        return FlashRL(network="shared", warmup="none", device=True)
