"""Models of PyTorch, exported programs and tensor programs, and parts of them."""
