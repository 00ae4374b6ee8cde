"""The numbers that the paper prints for deep mixtures: its Tables 2, 3 and 4.

M. Papež, T. Pevný, V. Šmídl: Fitting large mixture models using stochastic component selection,
arXiv:2110.04776. Digits are as printed; only the data sets carry the names of
`pickmix.data.uci.NAMES`. Tables 2 and 4 leave out statlog-satimage, although the text counts wins
"out of 19" there. All printed ranks follow from the printed numbers.

Means are over five repetitions. The speed-up is the time of SGD over that of MHSAEM-U, although the
captions say it the other way round. The ranks are "1224" ranks per set, averaged over the sets.

All dictionaries but those of ranks have keys (data set, model) or (data set, model, algorithm).

Examples
--------
>>> FIXED_SPEED_UP["wine", "sptn"], FIXED_TEST["wine", "sptn", "MHSAEM-U"]
(186.25, -13.5)
>>> BEST_TEST["iris", "flow", "SGD"], BEST_STD["iris", "flow", "SGD"], BEST_K["iris", "flow", "SGD"]
(-16.34, 10.13, 128.0)
>>> len({dataset for dataset, _ in BEST_SPEED_UP}), len({dataset for dataset, _ in FIXED_SPEED_UP})
(18, 19)
"""

from __future__ import annotations

from pickmix.experiments.reproduction.runs import MHSAEM_U, SGD

SPTN, FLOW = "sptn", "flow"
MODELS = (SPTN, FLOW)
ALGORITHMS = (SGD, MHSAEM_U)

ByModel = dict[tuple[str, str], float]
ByAlgorithm = dict[tuple[str, str, str], float]

# Speed-up; test mean, its standard deviation and K of SGD; the same three of MHSAEM-U.
_TABLE_2 = {
    SPTN: """
    breast-cancer-wisconsin    4.66   -4.66  3.07    64    1.43   1.70   1024
    cardiotocography          10.55   59.52  3.83   512   31.04   4.23   1024
    magic-telescope          102.53   -3.65  0.08   512   -5.03   0.06   1024
    pendigits                  4.89    0.88  0.07  1024   -4.86   0.46  16384
    pima-indians               0.37   -8.54  0.39    64   -7.62   0.81     64
    wall-following-robot       3.43    1.84  3.18  1024   -11.3   0.40  16384
    waveform-1                 4.35  -26.14  0.39    64  -23.91   0.07   1024
    waveform-2                 4.82  -26.21  0.43    64  -23.91   0.05   1024
    yeast                     20.57   10.26  0.65   512    5.18   0.46   1024
    ecoli                      1.86   -5.50  1.52    64   -0.22   0.65   1024
    ionosphere                 1.88  -20.27  5.61    64   -5.93   2.19    512
    iris                       0.23  -10.65  0.95    64   -1.49   0.00  16384
    page-blocks               12.18   12.21  1.03   512    6.84   0.42   1024
    parkinsons                 1.46  -21.85  3.51    64     0.5   1.47    512
    sonar                      2.96  -95.39  4.42   512  -69.29  10.03     64
    statlog-segment            1.44   47.35  3.89   512   26.53   2.30  16384
    statlog-vehicle            2.97   -4.25  0.86    64   -5.45   0.34   1024
    wine                      75.42  -25.99  0.44  1024  -13.27   0.54   1024
    """,
    FLOW: """
    breast-cancer-wisconsin   0.63   -99.85   38.45   32  -39.31  1.07  128
    cardiotocography          9.85    54.34    6.48   32   56.08  4.56  128
    magic-telescope           3.74    -3.97    0.12    8   -4.22  0.07    8
    pendigits                 4.17     1.46    0.59    8    0.48  0.56    8
    pima-indians              1.35   -20.09   13.13  128  -16.33  0.39  128
    wall-following-robot     22.21   -14.26    1.29  128  -17.56  1.20  128
    waveform-1                3.72   -34.12    0.98    8  -33.42  0.84    8
    waveform-2                4.12   -34.15    0.80    8  -33.64  0.65    8
    yeast                    14.49     6.61    4.11  128    9.59  3.75  128
    ecoli                     2.15   -11.37    8.82  128  -10.64  4.64  128
    ionosphere                2.74   -87.01   31.67  128  -42.75  2.28  128
    iris                      3.28   -16.34   10.13  128   -9.21  1.23   32
    page-blocks              44.95    17.13    0.37  128   17.94  0.56   32
    parkinsons                3.09  -566.58  379.52  128  -33.31  1.66   32
    sonar                     2.52   -622.2  630.50  128  -88.81  4.22  128
    statlog-segment          38.49    35.84    3.98  128   42.04  3.74   32
    statlog-vehicle           6.78   -31.34    2.06   32  -26.43  0.77  128
    wine                      2.05  -171.58   60.12  128  -25.57  0.54  128
    """,
}

# Speed-up; test means of SGD and MHSAEM-U. K = 1024 for networks, 128 for flows.
_TABLE_3 = {
    SPTN: """
    breast-cancer-wisconsin   16.72  -24.01     0.2
    cardiotocography          17.93   45.81   31.04
    magic-telescope           24.21   -4.41   -5.21
    pendigits                  15.5   -0.58   -5.96
    pima-indians              17.69  -20.18    -8.3
    wall-following-robot      16.96   -6.05  -16.98
    waveform-1               101.37  -39.16  -23.94
    waveform-2                92.73  -38.87  -23.95
    yeast                     12.41    4.29    5.18
    ecoli                     29.45  -14.02   -0.22
    ionosphere                13.78  -30.25   -7.35
    iris                      52.62   -12.5   -1.76
    page-blocks               16.68   11.98    6.84
    parkinsons                16.64  -35.75   -1.15
    sonar                      11.5  -98.43  -88.33
    statlog-satimage          14.52    3.33    3.74
    statlog-segment           16.35   40.81   25.73
    statlog-vehicle           23.43  -22.52   -5.45
    wine                     186.25  -26.53   -13.5
    """,
    FLOW: """
    breast-cancer-wisconsin   2.62  -112.63  -39.31
    cardiotocography         27.45    45.99   56.08
    magic-telescope          20.41    -6.01   -4.96
    pendigits                17.82    -1.78    -3.7
    pima-indians              1.35   -20.09  -16.33
    wall-following-robot     22.21   -14.26  -17.56
    waveform-1               19.09   -39.06  -40.41
    waveform-2               20.32   -39.42  -40.79
    yeast                    14.49     6.61    9.59
    ecoli                     2.15   -11.37  -10.64
    ionosphere                2.74   -87.01  -42.75
    iris                      1.45   -16.34   -9.45
    page-blocks              26.04    17.13   17.27
    parkinsons                3.22  -566.58   -33.0
    sonar                     2.52   -622.2  -88.81
    statlog-satimage         25.31    -7.38  -17.89
    statlog-segment          38.68    35.84    36.8
    statlog-vehicle          33.71   -31.21  -26.43
    wine                      2.05  -171.58  -25.57
    """,
}

# L at t95 of SGD and MHSAEM-U, then the test means, then the validation means.
_TABLE_4 = {
    SPTN: """
    breast-cancer-wisconsin   11.88    5.47   -4.66    1.43   -5.89    0.33
    cardiotocography          59.72   30.36   59.52   31.04   59.09   30.06
    magic-telescope           -3.08   -5.24   -3.65   -5.03   -3.75   -5.11
    pendigits                  4.89   -4.21    0.88   -4.86    0.77   -4.77
    pima-indians              -7.22    -7.4   -8.54   -7.62   -8.63   -7.54
    wall-following-robot       15.9   -6.75    1.84   -11.3   -0.16  -11.36
    waveform-1               -22.34   -24.4  -26.14  -23.91  -25.93  -23.86
    waveform-2               -22.17   -24.4  -26.21  -23.91  -25.87  -23.86
    yeast                     13.63    5.59   10.26    5.18   10.81    5.79
    ecoli                       6.3    0.65    -5.5   -0.22   -6.36   -0.83
    ionosphere                33.58    6.87  -20.27   -5.93  -12.39   -1.87
    iris                        4.7   -1.58  -10.65   -1.49  -12.11   -1.84
    page-blocks               12.76    6.73   12.21    6.84   12.36    6.93
    parkinsons                27.23     5.3  -21.85     0.5  -23.61   -0.25
    sonar                    158.64  -16.24  -95.39  -69.29  -96.02  -72.51
    statlog-segment           51.73   28.01   47.35   26.53   44.79    26.3
    statlog-vehicle            3.43    -4.0   -4.25   -5.45   -4.83   -5.31
    wine                      43.01  -12.39  -25.99  -13.27  -26.17  -12.95
    """,
    FLOW: """
    breast-cancer-wisconsin   21.19   46.97   -99.85  -39.31   -70.33  -39.21
    cardiotocography          58.21   62.95    54.34   56.08     52.7   54.35
    magic-telescope           -3.79   -4.07    -3.97   -4.22     -4.1   -4.31
    pendigits                  5.09    3.94     1.46    0.48     1.66    0.77
    pima-indians               1.97   11.52   -20.09  -16.33   -21.48  -16.61
    wall-following-robot      26.53   22.95   -14.26  -17.56   -15.99  -19.11
    waveform-1               -20.94  -21.01   -34.12  -33.42   -34.31   -33.6
    waveform-2               -20.87  -21.03   -34.15  -33.64   -34.02  -33.54
    yeast                     10.26    14.0     6.61    9.59     8.45   10.79
    ecoli                      5.55   10.78   -11.37  -10.64   -46.87  -11.66
    ionosphere                 43.3   74.58   -87.01  -42.75  -102.24  -41.88
    iris                       1.17    7.64   -16.34   -9.21   -13.88   -9.05
    page-blocks               17.67   18.62    17.13   17.94    17.42   18.01
    parkinsons                33.97   50.33  -566.58  -33.31  -552.33  -33.46
    sonar                     78.05  142.83   -622.2  -88.81  -371.82  -87.63
    statlog-segment           47.46   50.17    35.84   42.04     34.8    41.4
    statlog-vehicle           14.79   22.51   -31.34  -26.43   -30.23  -25.92
    wine                      19.21   34.77  -171.58  -25.57  -262.69  -25.03
    """,
}

# The rows "rank", by model and algorithm.
Ranks = dict[tuple[str, str], float]
BEST_RANK: Ranks = {
    (SPTN, SGD): 1.56,
    (SPTN, MHSAEM_U): 1.44,
    (FLOW, SGD): 1.83,
    (FLOW, MHSAEM_U): 1.17,
}
FIXED_RANK: Ranks = {
    (SPTN, SGD): 1.68,
    (SPTN, MHSAEM_U): 1.32,
    (FLOW, SGD): 1.74,
    (FLOW, MHSAEM_U): 1.26,
}
TRAIN_RANK: Ranks = {
    (SPTN, SGD): 1.0,
    (SPTN, MHSAEM_U): 2.0,
    (FLOW, SGD): 1.72,
    (FLOW, MHSAEM_U): 1.28,
}
TEST_RANK: Ranks = {
    (SPTN, SGD): 1.56,
    (SPTN, MHSAEM_U): 1.44,
    (FLOW, SGD): 1.83,
    (FLOW, MHSAEM_U): 1.17,
}
VALIDATION_RANK: Ranks = {
    (SPTN, SGD): 1.56,
    (SPTN, MHSAEM_U): 1.44,
    (FLOW, SGD): 1.83,
    (FLOW, MHSAEM_U): 1.17,
}


def _by_model(table: dict[str, str], place: int) -> ByModel:
    """One column of a table."""
    found = {}
    for model, text in table.items():
        for line in text.split("\n"):
            if fields := line.split():
                found[fields[0], model] = float(fields[1 + place])
    return found


def _by_algorithm(table: dict[str, str], of_sgd: int, of_mhsaem: int) -> ByAlgorithm:
    """A column of SGD and one of MHSAEM-U."""
    places = {SGD: of_sgd, MHSAEM_U: of_mhsaem}
    return {
        (dataset, model, algorithm): value
        for algorithm, place in places.items()
        for (dataset, model), value in _by_model(table, place).items()
    }


# Table 2: the architecture with the best validation value, for each algorithm.
BEST_SPEED_UP = _by_model(_TABLE_2, 0)
BEST_TEST = _by_algorithm(_TABLE_2, 1, 4)
BEST_STD = _by_algorithm(_TABLE_2, 2, 5)
BEST_K = _by_algorithm(_TABLE_2, 3, 6)
# Table 3: one architecture for all.
FIXED_SPEED_UP = _by_model(_TABLE_3, 0)
FIXED_TEST = _by_algorithm(_TABLE_3, 1, 2)
# Table 4: the architectures of Table 2.
TRAIN = _by_algorithm(_TABLE_4, 0, 1)
TEST = _by_algorithm(_TABLE_4, 2, 3)
VALIDATION = _by_algorithm(_TABLE_4, 4, 5)
