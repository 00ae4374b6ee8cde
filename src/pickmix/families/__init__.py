"""What a component is, in closed form: a feature map and an M-step."""
