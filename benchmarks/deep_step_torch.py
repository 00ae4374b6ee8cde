"""The MHSAEM-U step of `pickmix.gradient`, written by hand in eager PyTorch: a yardstick.

The same algorithm on the same tables, as plain PyTorch runs it well: parameters in stacked tables,
current and candidate evaluated together without gradients, gradients with respect to the gathered
rows of the chosen ones only, duplicates summed, Adam on the visited rows in place. What pickmix
does beyond that (annealing, M > 1, other proposals, refusing steps that are not finite) is left
out, in PyTorch's favour.

    python benchmarks/deep_step_torch.py    # checks it against pickmix, then times it
"""

from __future__ import annotations

import math
import time
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import numpy as np
import torch
from deep_speed import RATE, make_inputs
from torch import Tensor
from torch.nn.functional import pad

from pickmix.gradient.algorithm import Batch, State, selection_step
from pickmix.gradient.compilation import precision
from pickmix.gradient.components import ComponentMixture
from pickmix.gradient.network import Network
from pickmix.gradient.realnvp import RealNVP
from pickmix.gradient.settings import StepSettings
from pickmix.gradient.sptn import SumProductTransform
from pickmix.gradient.transforms import Transforms
from pickmix_experiments.runner import cpu_count

_FIRST, _SECOND, _EPSILON = 0.9, 0.999, 1e-8
_LOG_2_PI = math.log(2.0 * math.pi)


class Flows:
    """A mixture of real NVP flows with bounded scales.

    Columns of the table are, for each coupling layer: hidden, hidden bias, last, last bias, bound.
    The translation net and the scale net lie side by side, so that both take one product.
    """

    def __init__(self, network: ComponentMixture, dtype: torch.dtype) -> None:
        self.hidden = network.component.hidden
        numbers = np.arange(network.shapes[0][1])[None, None]
        parts: list[np.ndarray] = []
        for layer in network.unpack((numbers,)):
            nets = [layer["translation"], layer["log_scale"]]
            parts += [
                np.concatenate([net["hidden"][0] for net in nets], axis=1),
                np.concatenate([net["hidden_bias"][0] for net in nets]),
                np.stack([net["last"][0] for net in nets]),
                np.stack([net["last_bias"][0] for net in nets]),
                layer["bound"][0],
            ]
        self.shapes = [part.shape for part in parts]
        self.sizes = [part.size for part in parts]
        self.order = np.concatenate([part.ravel() for part in parts])

    def from_jax(self, tables: Any) -> list[Tensor]:
        """Copy pickmix's tables."""
        # NumPy would lay the rows out across one another.
        return [torch.from_numpy(np.ascontiguousarray(np.asarray(tables[0])[:, self.order]))]

    def to_jax(self, tables: list[Tensor]) -> list[np.ndarray]:
        """Invert `from_jax`."""
        return [tables[0].numpy()[:, np.argsort(self.order)]]

    def rows(self, choices: Tensor) -> list[Tensor]:
        """Rows (R * slots,) of each table that trees (R, n_slots) touch."""
        return [choices[:, 0]]

    def log_density(self, records: list[Tensor], choices: Tensor, x: Tensor) -> Tensor:
        """log p(x, tree | first choice) (R,) of rows (R, D), given the records of their trees."""
        # One split: its gradient is one concatenation, where slices would each fill a table.
        parts = [
            part.view(-1, *shape)
            for part, shape in zip(records[0].split(self.sizes, 1), self.shapes, strict=True)
        ]
        halves = [x[:, 0::2], x[:, 1::2]]
        log_scales = []
        for layer in range(len(parts) // 5):
            hidden, hidden_bias, last, last_bias, bound = parts[5 * layer : 5 * layer + 5]
            given, changed = halves[layer % 2], halves[1 - layer % 2]
            # With one row per matrix, multiply and sum is faster than torch.bmm, both ways.
            inside = (given.unsqueeze(2) * hidden).sum(1) + hidden_bias
            translation, scale = inside.split(self.hidden, 1)
            active = torch.stack([translation.relu(), scale.tanh()], 1)
            alpha, beta = ((active.unsqueeze(3) * last).sum(2) + last_bias).unbind(1)
            log_scale = bound * beta.tanh() * -0.5
            halves[1 - layer % 2] = log_scale.exp() * (changed - alpha)
            log_scales.append(log_scale)
        y = torch.cat(halves, 1)
        log_det = torch.cat(log_scales, 1).sum(1)
        return log_det - 0.5 * (y.square().sum(1) + y.shape[1] * _LOG_2_PI)


class SumProductTransforms:
    """A sum-product-transform network of any s, b and l."""

    def __init__(self, network: SumProductTransform, dtype: torch.dtype) -> None:
        self.layers = [LayerOfTransforms(kind, network.n_children, dtype) for kind in network.kinds]

    def from_jax(self, tables: Any) -> list[Tensor]:
        """Copy pickmix's tables."""
        return [torch.from_numpy(np.array(table)) for table in tables]

    def to_jax(self, tables: list[Tensor]) -> list[np.ndarray]:
        """Invert `from_jax`."""
        return [table.numpy() for table in tables]

    def rows(self, choices: Tensor) -> list[Tensor]:
        """Rows (R * slots,) of each table that trees (R, n_slots) touch."""
        return [
            ((choices[:, layer.paths] * layer.strides).sum(2) + layer.starts).flatten()
            for layer in self.layers
        ]

    def log_density(self, records: list[Tensor], choices: Tensor, x: Tensor) -> Tensor:
        """log p(x, tree | first choice) (R,) of rows (R, D), given the records of their trees."""
        total, n_before, y = -0.5 * x.shape[1] * _LOG_2_PI, 0, x
        for depth, (layer, record) in enumerate(zip(self.layers, records, strict=True)):
            params = layer.name(record)
            y = layer.forward(params, y)
            total = total + layer.log_scale(params).sum((1, 2))
            n_before += layer.n_slots
            if depth + 1 < len(self.layers):
                below = self.layers[depth + 1]
                log_weights = params["logits"].log_softmax(-1).flatten(1, 2)[:, below.places]
                chosen = choices[:, n_before : n_before + below.n_slots, None]
                total = total + log_weights.gather(2, chosen).sum((1, 2))
        return total - 0.5 * y.square().sum(1)


class LayerOfTransforms:
    """The transforms of one layer: where parameters lie in a record, and what they do."""

    def __init__(self, kind: Transforms, n_children: int, dtype: torch.dtype) -> None:
        layer = kind.layer
        self.n_slots, self.width = len(layer.sizes), layer.width
        self.shapes = {name: kind.example[name].shape for name in sorted(kind.example)}
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        # Which table rows: the choices on the way to a slot, read as digits to the base s.
        self.paths = torch.tensor(layer.paths)
        length = self.paths.shape[1]
        self.strides = n_children ** torch.arange(length - 1, -1, -1)
        self.starts = n_children**length * torch.arange(self.n_slots)
        # Which places hold a coordinate, and which of the parents' logits are whose.
        self.is_full = bool(layer.real.all())
        self.real = torch.from_numpy(layer.real).to(dtype)
        self.coordinates = torch.from_numpy(layer.coordinates)
        self.filled = torch.from_numpy(np.flatnonzero(layer.real))
        self.rotates = torch.from_numpy(kind.rotates).permute(1, 2, 0)[..., None].to(dtype)
        n_parts = 1 + max(layer.parts)
        places = n_parts * np.array(layer.parents) + np.array(layer.parts)
        is_all = np.array_equal(places, np.arange(n_parts * (1 + max(layer.parents))))
        self.places = slice(None) if is_all else torch.from_numpy(places)

    def name(self, record: Tensor) -> dict[str, Tensor]:
        """Parameters (R, slots, ...) of records (R * slots, columns)."""
        return {
            name: part.view(-1, self.n_slots, *shape)
            for part, (name, shape) in zip(
                record.split(self.sizes, 1), self.shapes.items(), strict=True
            )
        }

    def log_scale(self, params: dict[str, Tensor]) -> Tensor:
        """Log d (R, slots, width), zero where there is no coordinate."""
        return params["log_scale"] if self.is_full else params["log_scale"] * self.real

    def forward(self, params: dict[str, Tensor], x: Tensor) -> Tensor:
        """U diag(d) V x + c for rows (R, D)."""
        if self.is_full:
            y = x.view(-1, self.n_slots, self.width)
        else:
            y = pad(x, (0, 1))[:, self.coordinates]
        if "angles_in" in params:
            y = self._rotate(params["angles_in"], y)
        y = y * self.log_scale(params).exp()
        if "angles_out" in params:
            y = self._rotate(params["angles_out"], y)
        y = (y + params["shift"]).flatten(1)
        return y if self.is_full else y[:, self.filled]

    def _rotate(self, angles: Tensor, x: Tensor) -> Tensor:
        """Rotate scopes (R, slots, width): rows inside, so that slices are contiguous."""
        depth = angles.shape[2]
        turned = angles.permute(2, 3, 1, 0).contiguous() * self.rotates
        columns = x.permute(2, 1, 0).contiguous()
        if self.width % 2:
            columns = pad(columns, (0, 0, 0, 0, 0, 1))
        first, second = Rotate.apply(turned, columns[0::2], columns[1::2])
        even, odd = (second, first) if depth % 2 else (first, second)
        even, odd = even.roll((depth + 1) // 2, 0), odd.roll(depth // 2, 0)
        return torch.stack([even, odd], 1).flatten(0, 1)[: self.width].permute(2, 1, 0)


class Rotate(torch.autograd.Function):
    """A brick wall of rotations of two halves (pairs, ...) by angles (depth, pairs, ...).

    Left to autograd, a loop of 30 rotations takes half as long again.
    """

    @staticmethod
    def forward(ctx: Any, angles: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate; after each layer the halves change places, one of them shifted by a place."""
        sine, cosine = angles.sin(), angles.cos()
        firsts, seconds = [], []
        for s, c in zip(sine.unbind(0), cosine.unbind(0), strict=True):
            rotated = torch.addcmul(c * first, s, second, value=-1)
            first, second = torch.addcmul(s * first, c, second), rotated.roll(-1, 0)
            firsts.append(rotated)
            seconds.append(first)
        ctx.save_for_backward(sine, cosine, *firsts, *seconds)
        return first, second

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotate gradients back, then take all gradients of angles at once."""
        sine, cosine, *rotated = ctx.saved_tensors
        depth = len(sine)
        first, second = gradients
        firsts, seconds = [], []
        for s, c in zip(reversed(sine.unbind(0)), reversed(cosine.unbind(0)), strict=True):
            before = second.roll(1, 0)
            firsts.append(before)
            seconds.append(first)
            first, second = (
                torch.addcmul(c * before, s, first),
                torch.addcmul(c * first, s, before, value=-1),
            )
        # Of a rotated pair (a, b), the derivative by the angle is (-b, a).
        by_angle = torch.stack(seconds[::-1]) * torch.stack(rotated[:depth])
        by_angle.addcmul_(torch.stack(firsts[::-1]), torch.stack(rotated[depth:]), value=-1)
        return by_angle, first, second


MODELS = {ComponentMixture: Flows, SumProductTransform: SumProductTransforms}


class Fit:
    """What a fit holds, as `pickmix.gradient.algorithm.State` does, and its step."""

    def __init__(self, network: Network, data: Any, state: State) -> None:
        self.data = torch.from_numpy(np.array(data))
        self.model = MODELS[type(network)](network, self.data.dtype)
        self.tables = self.model.from_jax(state.tables)
        self.first = [torch.zeros_like(table) for table in self.tables]
        self.second = [torch.zeros_like(table) for table in self.tables]
        self.counts = [table.new_zeros(len(table), 1) for table in self.tables]
        self.logits = torch.from_numpy(np.array(state.root.logits))
        self.root_first = torch.zeros_like(self.logits)
        self.root_second = torch.zeros_like(self.logits)
        self.n_steps = 0
        self.chain = torch.from_numpy(np.array(state.chain, np.int64))

    def step(self, rows: Tensor, candidates: Tensor, uniforms: Tensor) -> None:
        """One step for data rows (B,), with trees (B, n_slots) and uniforms (B,)."""
        n_rows = len(rows)
        x = self.data.index_select(0, rows)
        current = self.chain.index_select(0, rows)
        log_weights = self.logits.log_softmax(0)
        with torch.no_grad():
            both = torch.cat([current, candidates])
            log_joint = self.model.log_density(self._gather(both)[1], both, torch.cat([x, x]))
            now, then = (log_joint + log_weights[both[:, 0]]).split(n_rows)
            accepted = uniforms < (then - now).exp()
            trees = torch.where(accepted[:, None], candidates, current)
        self.chain.index_copy_(0, rows, trees)

        table_rows, records = self._gather(trees)
        for record in records:
            record.requires_grad_()
        density = self.model.log_density(records, trees, x)
        weights = torch.full_like(density, -1.0 / n_rows)
        gradients = torch.autograd.grad(density, records, weights)
        with torch.no_grad():
            for table, gradient in enumerate(gradients):
                self._update_rows(table, table_rows[table], gradient)
            shares = torch.bincount(trees[:, 0], minlength=len(self.logits))
            self._update_root(log_weights.exp().sub_(shares, alpha=1.0 / n_rows))

    def _gather(self, trees: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        rows = self.model.rows(trees)
        records = [table.index_select(0, row) for table, row in zip(self.tables, rows, strict=True)]
        return rows, records

    def _update_rows(self, table: int, rows: Tensor, gradient: Tensor) -> None:
        """Adam on the visited rows, each with a count of its own."""
        visited, place = torch.unique(rows, return_inverse=True)
        total = gradient.new_zeros(len(visited), gradient.shape[1])
        total.index_add_(0, place, gradient)
        count = self.counts[table].index_select(0, visited).add_(1.0)
        first = self.first[table].index_select(0, visited).lerp_(total, 1.0 - _FIRST)
        second = self.second[table].index_select(0, visited).mul_(_SECOND)
        second.addcmul_(total, total, value=1.0 - _SECOND)
        spread = (second / -torch.expm1(count * math.log(_SECOND))).sqrt_().add_(_EPSILON)
        move = (first / torch.expm1(count * math.log(_FIRST))).div_(spread)
        value = self.tables[table].index_select(0, visited).add_(move, alpha=RATE)
        for array, new in (
            (self.counts[table], count),
            (self.first[table], first),
            (self.second[table], second),
            (self.tables[table], value),
        ):
            array.index_copy_(0, visited, new)

    def _update_root(self, gradient: Tensor) -> None:
        self.n_steps += 1
        self.root_first.lerp_(gradient, 1.0 - _FIRST)
        self.root_second.mul_(_SECOND).addcmul_(gradient, gradient, value=1.0 - _SECOND)
        spread = (self.root_second / (1.0 - _SECOND**self.n_steps)).sqrt_().add_(_EPSILON)
        rate = RATE / (1.0 - _FIRST**self.n_steps)
        self.logits.addcdiv_(self.root_first, spread, value=-rate)


class Steps:
    """Steps over given batches, again and again."""

    def __init__(self, network: Network, data: Any, state: State, batches: Batch) -> None:
        self.fit = Fit(network, data, state)
        self.rows = torch.from_numpy(np.array(batches.rows, np.int64))
        self.candidates = torch.from_numpy(np.array(batches.candidates[:, :, 0], np.int64))
        self.uniforms = torch.from_numpy(np.array(batches.uniforms[:, :, 0]))

    def run(self, n_steps: int, n_threads: int = 1) -> float:
        """Make steps and return the seconds that one takes."""
        torch.set_num_threads(n_threads)
        start = time.perf_counter()
        for step in range(n_steps):
            number = step % len(self.rows)
            self.fit.step(self.rows[number], self.candidates[number], self.uniforms[number])
        return (time.perf_counter() - start) / n_steps


def check(network: Network, n_steps: int = 3) -> float:
    """Make the same steps here and in pickmix: return the largest difference of parameters.

    In float64: the first steps of Adam divide gradients by their own size, rounding included.
    """
    with precision("float64"):
        data, state, batches = make_inputs(network, n_rows=500, n_steps=n_steps, dtype="float64")
        steps = Steps(network, data, state, batches)
        steps.run(n_steps)
        step = jax.jit(partial(selection_step, network, StepSettings("mhsaem"), data))
        for number in range(n_steps):
            state, _ = step(state, jax.tree.map(itemgetter(number), batches))
    fit = steps.fit
    if not np.array_equal(fit.chain.numpy(), state.chain):
        raise AssertionError("The chains differ from pickmix's.")
    ours = [*fit.model.to_jax(fit.tables), fit.logits.numpy()]
    theirs = [*state.tables, state.root.logits]
    difference = max(
        float(np.abs(a - np.asarray(b)).max()) for a, b in zip(ours, theirs, strict=True)
    )
    if not difference < 1e-6:
        raise AssertionError(f"Parameters differ from pickmix's by {difference:.1e}.")
    return difference


def main() -> None:
    networks = {
        "flows, K = 128": ComponentMixture(RealNVP(), 128, 30),
        "SPTN, s = 32, l = 2, b = 1": SumProductTransform(32, 1, 2, 30, "rotations"),
        "SPTN, s = 32, l = 2, b = 2": SumProductTransform(32, 2, 2, 30, "rotations"),
        "SPTN, s = 32, l = 2, b = 8": SumProductTransform(32, 8, 2, 30, "rotations"),
    }
    for name, network in networks.items():
        difference = check(network)
        steps = Steps(network, *make_inputs(network))
        seconds = {
            n_threads: min(steps.run(50, n_threads) for _ in range(6))
            for n_threads in sorted({1, cpu_count()})
        }
        times = ", ".join(f"{1e3 * s:.2f} ms with {n} threads" for n, s in seconds.items())
        print(f"{name}: {times}; parameters differ from pickmix's by {difference:.0e} at most")


if __name__ == "__main__":
    main()
