"""An analyst's question: are the data of our sites alike, and if not, whose are different?

Two tables of seven sites are made first, so that the script runs anywhere: in one all sites are alike, in the other one
site has another mix of diagnoses. The same on the command line:

    fedcohort skew --data visits.csv --target diagnosis --client site

    python examples/analyst_skew.py                 # a few seconds
"""

from __future__ import annotations

import numpy as np

import fedcohort as fc
from fedcohort.skew import rank_clients

SITES = ("Aarhus", "Bergen", "Cork", "Delft", "Espoo", "Faro", "Ghent")
DIAGNOSES = ("asthma", "bronchitis", "healthy")


def visits(odd: str = "") -> fc.Dataset:
    """Visits to seven sites, as any data frame or CSV file would hold them."""
    rng = np.random.default_rng(1)
    site = np.repeat(SITES, 400)
    usual, other = [0.2, 0.3, 0.5], [0.7, 0.2, 0.1]
    kind = np.array([rng.choice(3, p=other if s == odd else usual) for s in site])
    columns = {"age": rng.normal(50 - 5 * kind, 12), "flow": rng.normal(300 + 60 * kind, 70)}
    columns |= {"site": site, "diagnosis": np.array(DIAGNOSES)[kind]}
    return fc.Dataset.from_pandas(columns, target="diagnosis", client="site", name="visits")


def main() -> None:
    """The verdict on both tables, with its confidence, and the mix of the site that stands out."""
    even = rank_clients(visits(), rounds=5)
    print(even.evenness.text() if even.evenness else "")
    assert even.evenness is not None
    assert even.evenness.verdict == "even"

    skewed = rank_clients(visits(odd="Delft"), rounds=5)
    assert skewed.evenness is not None
    assert skewed.counts is not None
    print(skewed.evenness.text())
    who = int(skewed.evenness.odd[0])
    mix = skewed.counts[who] / skewed.counts[who].sum()
    print(f"{skewed.name(who)}:", ", ".join(f"{n} {m:.0%}" for n, m in zip(skewed.class_names, mix, strict=True)))
    assert skewed.name(who) == "Delft"
    print("alike, best first:", ", ".join(skewed.name(int(c)) for c in skewed.best()))


if __name__ == "__main__":
    main()
