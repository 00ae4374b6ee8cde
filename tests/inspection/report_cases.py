"""Models and tables that reports are made of, and reports as tests read them."""

import json
import re

import numpy as np

import pickmix

#: Texts that would be markup, code or the end of a string if nobody escaped them.
HOSTILE_COLUMN = "<script>window.hacked = 1</script>"
HOSTILE_LEVEL = "</script><script>window.hacked = 2</script>"
HOSTILE_LEVELS = (HOSTILE_LEVEL, '"><img src=x onerror="window.hacked=3">', "a & b \u2028 'c'")
HOSTILE_ID = '\'"><b onmouseover="window.hacked=4">{}</b>\\'
HOSTILE_TITLE = "</title><script>window.hacked = 5</script> & co."


def clusters(n=600, D=2, K=6, seed=0):
    rng = np.random.default_rng(seed)
    centres = 8.0 * rng.normal(size=(K, D))
    return centres[rng.integers(K, size=n)] + rng.normal(size=(n, D))


def gaussians(K=12, D=2, n=600, **settings):
    X = clusters(n, D)
    settings = {"random_state": 0, "max_iter": 10, "tol": 0.0} | settings
    return pickmix.GaussianMixture(K, **settings).fit(X), X


def customers(n=400, seed=0, hostile=False):
    """A table of several kinds of columns, with gaps, and a column that names the rows."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, n)
    levels = HOSTILE_LEVELS if hostile else ("Lyon", "Oslo", "Rome")
    table = {
        "who": np.array([(HOSTILE_ID if hostile else "c{}").format(i) for i in range(n)]),
        (HOSTILE_COLUMN if hostile else "income"): 1000.0 * group + 100.0 * rng.normal(size=n),
        "visits": rng.poisson(1.0 + 3.0 * group).astype(np.float64),
        "city": np.array(levels, dtype=object)[group],
        "since": np.datetime64("2020-01-01") + (200 * group + rng.integers(0, 30, n)),
        "active": np.array([bool(b) for b in rng.random(n) < 0.3 + 0.2 * group], dtype=object),
    }
    table["visits"][:7] = np.nan
    table["city"][3:9] = None
    return table


def table_mixture(table, K=4):
    known = {name: column for name, column in table.items() if name != "who"}
    return pickmix.TableMixture(K, random_state=0, max_iter=8, tol=0.0).fit(known)


def payload_of(page):
    """What is embedded in a page."""
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])
