r"""Distribution functions of quadratic forms in normal variables.

Everything is computed for the form :math:`Q = \sum_l a_l z_l^2 + b_l z_l` with independent
standard normal :math:`z_l`. A weighted noncentral chi-square is a special case, and unlike its
noncentrality :math:`(b_l / 2 a_l)^2`, the pair :math:`(a_l, b_l)` stays finite as
:math:`a_l \to 0`, where the term becomes a plain normal variable.

The Laplace transform of Q is known, so F is an inversion integral. The integrand is analytic off
the real axis, hence the path may be chosen freely in the upper half plane. It starts at the real
saddle point and takes straight pieces near the direction of steepest descent: the integrand then
falls instead of oscillating, however slowly it falls along Imhof's path (one or two terms).

References
----------
Imhof (1961), Computing the distribution of quadratic forms in normal variables. Biometrika 48.
Davies (1980), The distribution of a linear combination of chi-square random variables. JRSS C.
Helstrom (1996), Calculating the distribution of quadratic forms by saddlepoint integration.
"""

from __future__ import annotations

import math

import numpy as np

from pickmix.compiled import kernel, part

# Gauss-Kronrod (7, 15) rule on [-1, 1]; the Gauss nodes are the odd entries.
_HALF_NODES = [0.9914553711208126, 0.9491079123427585, 0.8648644233597691, 0.7415311855993945]
_HALF_NODES += [0.5860872354676911, 0.4058451513773972, 0.2077849550078985]
_HALF_KRONROD = [0.022935322010529225, 0.06309209262997856, 0.10479001032225019]
_HALF_KRONROD += [0.14065325971552592, 0.1690047266392679, 0.19035057806478542, 0.20443294007529889]
_HALF_GAUSS = [0.0, 0.1294849661688697, 0.0, 0.27970539148927664, 0.0, 0.3818300505051189, 0.0]
_NODES = np.array([-node for node in _HALF_NODES] + [0.0] + _HALF_NODES[::-1])
_KRONROD = np.array([*_HALF_KRONROD, 0.20948214108472782, *_HALF_KRONROD[::-1]])
_GAUSS = np.array([*_HALF_GAUSS, 0.4179591836734694, *_HALF_GAUSS[::-1]])

# The Gauss-Kronrod difference overstates the error of the Kronrod sum by orders of magnitude.
_PIECE_TOLERANCE = 1e-9
_TAIL_TOLERANCE = 1e-11
_NEGLIGIBLE_LOG_PROBABILITY = math.log(1e-13)
_MAX_PIECES = 20_000
# A path whose integrand grows past this loses digits to cancellation; a vertical path cannot grow.
_MAX_LOG_INTEGRAND = math.log(1e4)
_MAX_DESCENT_PER_PIECE = 6.0
_MAX_PIECE_TO_SINGULARITY = 2.5


@part()
def _log_integrand(p, x, a, b_squared):
    """Return log of E[exp(-p Q)] exp(p x) / p for complex p with Im p > 0."""
    # One logarithm of a product is far cheaper than D logarithms. The product's principal
    # argument can wrap at pi; each factor turns it by less than pi, so a wrap shows as a change
    # of sign of the imaginary part against the direction of turning.
    product = complex(1.0, 0.0)
    wraps = 0
    log_product = complex(0.0, 0.0)
    exponent = p * x
    for l in range(a.size):  # noqa: E741
        if a[l] != 0.0:
            u = 1.0 + 2.0 * a[l] * p
            previous_imag = product.imag
            product = product * u
            if a[l] > 0.0 and previous_imag >= 0.0 and product.imag < 0.0:
                wraps += 1
            elif a[l] < 0.0 and previous_imag < 0.0 and product.imag >= 0.0:
                wraps -= 1
            if abs(product.real) + abs(product.imag) > 1e100:
                log_product += np.log(product)
                product = complex(1.0, 0.0)
            if b_squared[l] != 0.0:
                squared_modulus = u.real * u.real + u.imag * u.imag
                exponent += 0.5 * b_squared[l] * (p * p) * (u.conjugate() / squared_modulus)
        else:
            exponent += 0.5 * b_squared[l] * (p * p)
    log_product += np.log(product) + complex(0.0, 2.0 * math.pi * wraps)
    return exponent - 0.5 * log_product - np.log(p)


@part()
def _log_integrand_slope(p, x, a, b_squared):
    """Return the derivative of `_log_integrand`, and the distance of p to the singularities."""
    slope = x - 1.0 / p
    distance = abs(p)
    for l in range(a.size):  # noqa: E741
        u = 1.0 + 2.0 * a[l] * p
        slope += -a[l] / u + b_squared[l] * p * (1.0 + a[l] * p) / (u * u)
        if a[l] != 0.0:
            distance = min(distance, abs(u) / (2.0 * abs(a[l])))
    return slope, distance


@part()
def _real_saddle(x, a, b_squared):
    """Minimise the (convex) log integrand over the real p > 0 where the transform exists.

    Returns the minimiser to about a tenth of the peak's width, which is all a starting point needs,
    the second derivative there and the Chernoff bound log E[exp(-p Q)] + p x >= log F(x).
    """
    low = 0.0
    high = math.inf
    for l in range(a.size):  # noqa: E741
        if a[l] < 0.0:
            high = min(high, -0.5 / a[l])
    p = min(1.0, 0.5 * high)
    curvature = 1.0
    log_bound = 0.0
    for _ in range(200):
        slope = x - 1.0 / p
        curvature = 1.0 / (p * p)
        log_bound = p * x
        for l in range(a.size):  # noqa: E741
            u = 1.0 + 2.0 * a[l] * p
            slope += -a[l] / u + b_squared[l] * p * (1.0 + a[l] * p) / (u * u)
            curvature += 2.0 * (a[l] / u) ** 2 + b_squared[l] / (u * u * u)
            log_bound += -0.5 * math.log(u) + 0.5 * b_squared[l] * p * p / u
        if log_bound < _NEGLIGIBLE_LOG_PROBABILITY or slope * slope < 0.01 * curvature:
            break
        if slope > 0.0:
            high = p
        else:
            low = p
        p -= slope / curvature
        if not (low < p < high):
            p = 4.0 * low if high == math.inf else 0.5 * (low + high)
        if p <= low or p >= high:  # the bracket is down to rounding error
            p = low
            break
    return p, curvature, log_bound


@part()
def _integrate_along_descent(start, curvature, x, a, b_squared, bent):
    """Integrate from the real saddle to infinity; returns the integral / pi and success."""
    p = complex(start, 0.0)
    direction = complex(0.0, 1.0)
    _, distance = _log_integrand_slope(p, x, a, b_squared)
    step = min(2.0 / math.sqrt(curvature), _MAX_PIECE_TO_SINGULARITY * distance)
    total = 0.0
    for _ in range(_MAX_PIECES):
        half = 0.5 * step * direction
        kronrod = complex(0.0, 0.0)
        gauss = complex(0.0, 0.0)
        largest = -math.inf
        last = 0.0
        for node in range(_NODES.size):
            log_value = _log_integrand(p + half * (1.0 + _NODES[node]), x, a, b_squared)
            last = log_value.real
            largest = max(largest, last)
            if last < _MAX_LOG_INTEGRAND:
                value = np.exp(log_value)
                kronrod += _KRONROD[node] * value
                gauss += _GAUSS[node] * value
        if largest >= _MAX_LOG_INTEGRAND:
            # On a bent path: go straight. On a straight one only a huge x or a can do this.
            return total, False
        if abs((kronrod - gauss) * half) > _PIECE_TOLERANCE:
            step *= 0.5
            continue
        total += (kronrod * half).imag
        p += 2.0 * half
        if math.exp(last) * abs(p) < _TAIL_TOLERANCE:
            return total / math.pi, True
        slope, distance = _log_integrand_slope(p, x, a, b_squared)
        steepness = abs(slope)
        if bent and steepness > 0.0:
            direction = -slope.conjugate() / steepness
            # Keep rising: a path that bends down could end in an essential singularity on the
            # real axis, and where Q has a normal part, below 45 degrees the integrand grows.
            if direction.imag < abs(direction.real):
                direction = complex(math.copysign(math.sqrt(0.5), direction.real), math.sqrt(0.5))
        step = _MAX_PIECE_TO_SINGULARITY * distance
        if steepness * step > _MAX_DESCENT_PER_PIECE:
            step = _MAX_DESCENT_PER_PIECE / steepness
    return total / math.pi, False


@part()
def _normal_cdf(x):
    return 0.5 * math.erfc(-x * math.sqrt(0.5))


@part()
def _single_term_cdf(x, a, b_squared):
    """P[a z^2 + b z <= x] for a >= 0: the normal mass between the roots of the parabola."""
    b = math.sqrt(b_squared)
    if a == 0.0:
        return _normal_cdf(x / b)
    discriminant = b_squared + 4.0 * a * x
    if discriminant <= 0.0:
        return 0.0
    root = math.sqrt(discriminant)
    # 2 x / (b + root) is (root - b) / (2 a) without its cancellation for small a.
    return max(0.0, _normal_cdf(2.0 * x / (b + root)) - _normal_cdf(-(b + root) / (2.0 * a)))


@part()
def _quadratic_cdf(x, quadratic, linear_squared):
    """P[sum_l a_l z_l^2 + b_l z_l <= x]; NaN only when the integration did not converge."""
    mean = 0.0
    variance = 0.0
    for l in range(quadratic.size):  # noqa: E741
        mean += quadratic[l]
        variance += 2.0 * quadratic[l] ** 2 + linear_squared[l]
    if variance == 0.0 or math.isinf(x):
        return 1.0 if x >= 0.0 else 0.0
    # Work in standard deviations and with the lower tail: P[Q <= x] = 1 - P[-Q <= -x].
    upper = x > mean
    scale = math.sqrt(variance)
    signed_scale = -scale if upper else scale
    a = np.empty_like(quadratic)
    b_squared = np.empty_like(quadratic)
    n_terms = 0
    lower_end = 0.0
    for l in range(quadratic.size):  # noqa: E741
        if quadratic[l] == 0.0 and linear_squared[l] == 0.0:
            continue
        a[n_terms] = quadratic[l] / signed_scale
        b_squared[n_terms] = linear_squared[l] / variance
        if a[n_terms] > 0.0:
            lower_end -= 0.25 * b_squared[n_terms] / a[n_terms]
        else:
            lower_end = -math.inf
        n_terms += 1
    a = a[:n_terms]
    b_squared = b_squared[:n_terms]
    z = x / signed_scale
    if n_terms == 1:
        if a[0] >= 0.0:
            tail = _single_term_cdf(z, a[0], b_squared[0])
        else:
            tail = 1.0 - _single_term_cdf(-z, -a[0], b_squared[0])
    elif z <= lower_end:
        tail = 0.0
    else:
        start, curvature, log_bound = _real_saddle(z, a, b_squared)
        if log_bound < _NEGLIGIBLE_LOG_PROBABILITY:
            tail = 0.0
        else:
            tail, success = _integrate_along_descent(start, curvature, z, a, b_squared, True)
            if not success:
                tail, success = _integrate_along_descent(start, curvature, z, a, b_squared, False)
            if not success:
                return math.nan
    tail = min(1.0, max(0.0, tail))
    return 1.0 - tail if upper else tail


@kernel()
def quadratic_cdf_rows(x, quadratic, linear_squared, out):
    """Write P[sum_l a_rl z_l^2 + b_rl z_l <= x_r] into out (R,); a and b^2 are (R, D).

    The absolute error is below 1e-8, for any D and any signs.
    """
    for row in range(x.size):
        out[row] = _quadratic_cdf(x[row], quadratic[row], linear_squared[row])
