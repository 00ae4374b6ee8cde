"""Engine 2: mixtures of any differentiable component, by gradients of the selected rows. JAX."""
