"""The graph-aware encoder-decoder of Ni et al. (AAAI 2020), which places stream graphs for throughput."""
