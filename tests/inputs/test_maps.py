"""Maps of columns to normal scores, atoms and levels."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from pickmix.inputs.encoding import encode
from pickmix.inputs.frames import read_typed
from pickmix.inputs.inference import infer_schema
from pickmix.inputs.kinds import Step, find_step
from pickmix.inputs.maps import find_atoms, maps_of, spread_ties
from pickmix.inputs.schema import TableSchema


def schema_of(**columns):
    return infer_schema(read_typed(columns), mapped=True)


@pytest.fixture(scope="module")
def skewed():
    return np.exp(np.random.default_rng(0).normal(size=4000))


@pytest.mark.parametrize("rounded", [None, 1, 0])
def test_a_map_is_undone_and_its_slope_is_the_derivative(skewed, rounded):
    values = skewed if rounded is None else np.round(10.0 * skewed, rounded)
    schema = schema_of(x=values)
    column = maps_of(schema)[0]
    x = np.linspace(column.lowest, column.highest, 1003)
    z, log_slopes = column.forward(x)
    assert (np.diff(z) > 0.0).all()
    np.testing.assert_allclose(column.backward(z), x, rtol=1e-9, atol=1e-9)
    # Between knots the map is linear, so differences are exact.
    width = 1e-7
    inner = np.abs(x[:, None] - column.knots[0]).min(axis=1) > 2 * width
    difference = column.forward(x + width)[0] - column.forward(x - width)[0]
    np.testing.assert_allclose(
        difference[inner] / (2 * width), np.exp(log_slopes)[inner], rtol=1e-5
    )


def test_scores_are_normal_and_go_on_beyond_the_range(skewed):
    column = maps_of(schema_of(x=skewed))[0]
    natural = skewed / skewed.std()
    scores = np.sort(column.forward(natural)[0])
    expected = ndtri((np.arange(skewed.size) + 0.5) / skewed.size)
    assert np.abs(scores - expected)[20:-20].max() < 0.1
    beyond = column.forward(np.array([natural.min() - 5.0, natural.max() + 5.0]))[0]
    assert beyond[0] < scores[0]
    assert beyond[1] > scores[-1]
    # Draws from there come back into the range.
    np.testing.assert_array_equal(
        column.backward(np.array([-50.0, 50.0])), [column.lowest, column.highest]
    )


def test_atoms_stand_out_from_their_neighbours():
    rng = np.random.default_rng(0)
    rest = rng.normal(size=900).round(3)
    assert find_atoms(np.concatenate([np.full(100, 0.5), rest])).tolist() == [0.5]
    # Whole numbers that all are frequent have none; 1 % at least is needed.
    assert find_atoms(rng.integers(0, 60, 3000).astype(float)).size == 0
    assert find_atoms(np.concatenate([np.full(30, 0.5), np.arange(3000.0)])).size == 0


def test_cells_become_an_atom_or_a_score():
    x = np.concatenate([np.zeros(60), np.linspace(1.0, 2.0, 140), [np.nan]])
    schema = schema_of(x=x, y=np.tile(["a", "b", "c"], 67))
    maps = maps_of(schema)
    rows, log_slopes = maps.forward(encode(schema, read_typed({"x": x, "y": ["a"] * 201}))[0])
    assert maps.n_latent == 3
    assert rows[:60, 2].tolist() == [1.0] * 60
    assert np.isnan(rows[:60, 0]).all()
    assert (rows[60:200, 2] == 0.0).all()
    assert not np.isnan(rows[60:200, 0]).any()
    assert np.isnan(rows[200, [0, 2]]).all()
    assert (log_slopes[:60] == 0.0).all()
    complete = np.where(np.isnan(rows), 0.3, rows)[:200]
    np.testing.assert_allclose(maps.backward(complete)[:, 0] * schema["x"].scale, x[:200])


def test_ties_are_spread_over_their_cells_only():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 200, 2000).astype(float)
    schema = schema_of(x=x)
    rows = encode(schema, read_typed({"x": x}))[0]
    spread = spread_ties(schema, rows) * schema["x"].scale
    away = spread[:, 0] - x
    assert np.abs(away).max() <= 0.5
    assert np.unique(away).size > 1900
    np.testing.assert_array_equal(spread, spread_ties(schema, rows) * schema["x"].scale)


def cell_masses(schema, values):
    """Probabilities of the cells of natural values under a standard normal distribution."""
    column, step = maps_of(schema)[0], schema["x"].step
    ends = (values + np.array([[-0.5], [0.5]]) * step) / schema["x"].scale
    return np.diff(ndtr(column.forward(ends)[0]), axis=0)[0]


def test_tied_values_are_as_frequent_as_in_the_rows():
    # Multiples of seven are three times as frequent as the others, which is too little for atoms.
    values, weights = np.arange(200.0), np.where(np.arange(200) % 7 == 0, 3.0, 1.0)
    weights /= weights.sum()
    random = np.random.default_rng(0)
    schema = schema_of(x=random.choice(values, 8000, p=weights))
    assert not schema["x"].atoms
    masses = cell_masses(schema, values)
    # Within chance: some 31 rows of each of the others, and 93 of the multiples.
    assert np.sum(weights * np.log(weights / masses)) < 0.02
    # No piece is made of what is even.
    even = schema_of(x=random.integers(0, 200, 8000).astype(float))
    assert len(even["x"].knots[0]) < 70


def test_values_off_the_step_share_the_cells_of_those_on_it():
    x = np.random.default_rng(0).integers(0, 200, 8000).astype(float)
    x[[10, 20, 30]] = [50.3, 100.3, 150.3]
    schema = schema_of(x=x)
    assert schema["x"].step == 1.0
    rows = spread_ties(schema, encode(schema, read_typed({"x": x}))[0])
    z, log_slopes = maps_of(schema)[0].forward(rows[:, 0])
    log_densities = -0.5 * np.square(z) - 0.5 * np.log(2 * np.pi) + log_slopes
    expected = -np.log(200.0 / schema["x"].scale)
    assert abs(log_densities.mean() - expected) < 0.02


@pytest.mark.parametrize("name", ["steps", "values"])
def test_some_rows_lie_in_the_cells_of_all(name):
    random = np.random.default_rng(0)
    x = random.integers(0, 200, 4000).astype(float)
    if name == "values":
        x = np.sort(random.random(200))[x.astype(int)]
    schema = schema_of(x=x)
    assert bool(schema["x"].support) == (name == "values")
    rows = encode(schema, read_typed({"x": x}))[0]
    np.testing.assert_array_equal(spread_ties(schema, rows[:50]), spread_ties(schema, rows)[:50])
    # Cells are those of what draws are rounded to.
    spread, scale = spread_ties(schema, rows)[:, 0], schema["x"].scale
    rounded = maps_of(schema)[0].rounded(spread) * scale if schema["x"].support else spread * scale
    np.testing.assert_allclose(rounded if schema["x"].support else np.rint(rounded), x, rtol=1e-12)


def test_few_values_are_ordinal_unless_rows_are_few():
    values = np.tile([1.0, 2.5, 7.0], 30)
    assert schema_of(x=values)["x"].kind == "ordinal"
    assert schema_of(x=values[:45])["x"].kind == "integer"
    # Most values are there once: others will come.
    zeros = np.concatenate([np.zeros(900), np.random.default_rng(0).gamma(2.0, 5.0, 25)])
    assert schema_of(x=zeros)["x"].kind == "number"
    assert schema_of(x=zeros)["x"].atoms == (0.0,)
    assert infer_schema(read_typed({"x": values}))["x"].kind == "integer"


def test_odd_cells_do_not_decide_a_step():
    whole = np.arange(3000.0)
    assert find_step(np.append(whole, [14.66666667, 2.5])) == Step(1, 0)
    assert find_step(np.append(10.0 * whole, 3.0)) == Step(10, 0)
    # One in ten is no odd cell.
    assert find_step(np.append(whole[:20], [0.25, 0.5])) == Step(25, 2)
    # Zeros are multiples of everything.
    assert find_step(np.append(np.zeros(10_000), np.random.default_rng(0).random(10))) is None


def test_schemas_are_kept_as_plain_values(skewed):
    x = np.where(np.arange(4000) % 3, skewed, 0.0)
    schema = schema_of(x=x, n=np.arange(4000) % 7)
    again = TableSchema.from_dict(schema.as_dict())
    assert again == schema
    assert "often 0" in str(schema)
    damaged = schema.as_dict()
    damaged["columns"][0]["knots"] = [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(ValueError, match="'knots'"):
        TableSchema.from_dict(damaged)
