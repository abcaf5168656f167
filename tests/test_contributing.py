"""The new selector of CONTRIBUTING, typed in as it is printed, keeps the contract."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType

from fedcohort.testing import SelectorContract

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"


class TestTheSelectorOfContributing(SelectorContract):
    def make(self):
        code = re.search(r"^ *```python\n(.*?)^ *```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        module = sys.modules["freshest"] = ModuleType("freshest")  # dataclasses look their module up
        exec(compile(textwrap.dedent(code.group(1)), str(PAGE), "exec"), module.__dict__)
        return module.Freshest()
