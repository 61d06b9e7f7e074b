"""PyTorch modules, exported programs and tensor programs, and segments cut out of them."""
