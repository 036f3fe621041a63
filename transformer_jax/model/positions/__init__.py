"""How the model knows the order of subwords."""
