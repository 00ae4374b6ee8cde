"""The paper's 19 UCI sets with K chosen on validation rows, against scikit-learn.

Both fit Gaussian mixtures with full covariances, default settings, K in 1, 2, 4, ..., 128 as long
as there are twice as many training rows, and take the K whose mixture gives the validation rows the
highest likelihood. Protocol "paper" of `pickmix.data.uci`. Prints and writes the log-likelihood per
test row. Seeds are splits and starts.

    PICKMIX_DATA=... python benchmarks/uci_chosen.py [--seeds 3] [--sets NAME ...] [--quick]
"""

from __future__ import annotations

import warnings

from anomalies import QUICK, choose
from reporting import Line, medians, parser_for, print_machine, print_table, timed, write_lines
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Baseline

from pickmix import GaussianMixture
from pickmix.data import uci


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=3)
    parser.add_argument("--sets", nargs="*", default=list(uci.NAMES))
    arguments = parser.parse_args()
    sets, seeds = arguments.sets, arguments.seeds
    if arguments.quick:
        sets, seeds = QUICK, 1
    warnings.simplefilter("ignore", ConvergenceWarning)
    print_machine()
    lines: list[Line] = []
    for name in sets:
        for seed in range(seeds):
            split = uci.load(name, "paper", random_state=seed)
            for who, kind in (("pickmix", GaussianMixture), ("scikit-learn", Baseline)):
                (mixture, K, _), seconds = timed(lambda k=kind, p=split, s=seed: choose(k, p, s))
                line = {"set": name, "seed": seed, "who": who, "K": K}
                lines.append(line | {"test": mixture.score(split.test), "seconds": seconds})
        print(name, flush=True)
    found = medians(lines, ("set", "who"), ("test", "K", "seconds"))
    print_table("Log-likelihood per test row: medians over seeds", found)
    if not arguments.quick:
        write_lines(arguments.out, "uci_chosen.csv", lines)


if __name__ == "__main__":
    main()
