"""Text with decoders: tokenizers, chat templates, sampling, and the loop that makes one token after the other.

May import ``serving`` and what is below. Read :mod:`~placeit.text.generating` first.
"""
