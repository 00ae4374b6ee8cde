"""Engine 1: exponential families by sparse sufficient statistics."""
