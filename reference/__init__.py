"""DeepSeek-V4.1-Flash text backbone in PyTorch: the definition other implementations are checked against."""
