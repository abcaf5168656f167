"""Where the known datasets come from: official addresses, checksums, and what to do where a person has to ask for them.

The sha256 are of the files as served: CIFAR-10's file is the one whose md5 its page prints, the MNIST and Fashion-MNIST
files those of their authors, the UCI archive that of the repository.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fedcohort.data.known import HAR_ARCHIVE


@dataclass(frozen=True, slots=True)
class Remote:
    """One official file: its name, its sha256, its size where that is known, and the addresses it is under."""

    file: str
    sha256: str
    bases: tuple[str, ...]
    size: int | None = None

    def urls(self, mirror: str | None = None) -> tuple[str, ...]:
        """Where to ask, in order; a mirror replaces all official addresses."""
        bases = self.bases if mirror is None else (mirror.rstrip("/") + "/",)
        return tuple(base + self.file for base in bases)


@dataclass(frozen=True, slots=True)
class Source:
    """How to get one dataset: its files, or what a person must do, and its terms."""

    files: tuple[Remote, ...] = ()
    by_hand: str = ""
    terms: str = ""


def sha256_of(path: Path) -> str:
    """The checksum of a file, read in blocks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _idx(bases: tuple[str, ...], *parts: tuple[str, str, int]) -> tuple[Remote, ...]:
    return tuple(Remote(f"{stem}-ubyte.gz", sha256, bases, size) for stem, sha256, size in parts)


SOURCES: dict[str, Source] = {
    "cifar10": Source(
        (
            Remote(
                "cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
                170_052_171,
            ),
        ),
        terms="cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    ),
    "mnist": Source(
        _idx(
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
            ("train-images-idx3", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
            ("train-labels-idx1", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
            ("t10k-images-idx3", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
            ("t10k-labels-idx1", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
        ),
        terms="cite LeCun, Cortes and Burges, The MNIST database of handwritten digits",
    ),
    "fashion-mnist": Source(
        _idx(
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            ),
            ("train-images-idx3", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
            ("train-labels-idx1", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
            ("t10k-images-idx3", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
            ("t10k-labels-idx1", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
        ),
        terms="MIT licence; cite Xiao, Rasul and Vollgraf, 2017",
    ),
    "har": Source(
        (
            Remote(
                HAR_ARCHIVE,
                "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
                ("https://archive.ics.uci.edu/static/public/240/",),
                61_005_872,
            ),
        ),
        terms="CC BY 4.0; cite Anguita et al., ESANN 2013",
    ),
    "femnist": Source(
        by_hand=(
            "LEAF makes it on your machine: git clone https://github.com/TalwalkarLab/leaf, in leaf/data/femnist run "
            "./preprocess.sh -s niid --sf 0.05 -k 0 -t sample, then run: "
            "fedcohort data get femnist --from leaf/data/femnist"
        ),
        terms="NIST Special Database 19; cite Caldas et al., LEAF, 2018",
    ),
    "mobifall": Source(
        by_hand=(
            "its authors hand it out on request: fill in the form on "
            "https://bmi.hmu.gr/the-mobifall-and-mobiact-datasets-2/, cut it into windows of 128 readings "
            "(acceleration x y z, angular velocity x y z), save x, y, client and scale as mobifall.npz, then run: "
            "fedcohort data get mobifall --from FOLDER"
        ),
        terms="for research, as agreed with its authors; cite Vavoulas et al., 2014",
    ),
}
