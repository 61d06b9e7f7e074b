"""The decoder of HDP and of the stream allocation: an LSTM with attention over the ops that writes devices one by one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

__all__ = ["AttentionDecoder", "State", "encode_both_ways"]

State = tuple[Tensor, Tensor]
"""Hidden state and cell of an LSTM, ``[1, R, H]``."""


class AttentionDecoder(nn.Module):
    """LSTM decoder with multiplicative attention (Luong et al. 2015) over the encoded ops.

    At each step it reads the device of the previous op and the features of the current op. The LSTM's output attends to all
    encoded ops. The logits of the devices are computed from the output and the attended context.

    Args:
        inputs: width of an op's features.
        devices: number of outputs.
        hidden: width of the decoder and of encoded ops; even.
    """

    def __init__(self, inputs: int, devices: int, hidden: int) -> None:
        super().__init__()
        self.device = nn.Embedding(devices + 1, hidden // 2)  # the last row is the start token
        self.decoder = nn.LSTM(inputs + hidden // 2, hidden, batch_first=True)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.joined = nn.Linear(2 * hidden, hidden)
        self.logits = nn.Linear(hidden, devices)

    def decode(self, current: Tensor, encoded: Tensor, absent: Tensor, previous: Tensor, state: State) -> tuple[Tensor, State]:
        """Decode ``T`` consecutive steps.

        Args:
            current: ``[R, T, I]``, features of the ops of these steps.
            encoded: ``[R, V, H]``, all encoded ops.
            absent: ``bool[R, V]``, True for padding.
            previous: ``int64[R, T]``, device of the op before each of these ops.
            state: state of the decoder before these steps.

        Returns:
            ``[R, T, D]`` logits, and the state after these steps.
        """
        outputs, state = self.decoder(torch.cat([current, self.device(previous)], dim=2), state)
        match = torch.bmm(self.query(outputs), encoded.transpose(1, 2))
        weights = match.masked_fill(absent[:, None], -torch.inf).softmax(dim=2)
        joined = torch.tanh(self.joined(torch.cat([outputs, torch.bmm(weights, encoded)], dim=2)))
        return self.logits(joined), state


def encode_both_ways(encoder: nn.LSTM, features: Tensor, lengths: Tensor) -> tuple[Tensor, State]:
    """Return the outputs ``[P, V, H]`` of a bidirectional LSTM, zero where padded, and its last states, both directions joined.

    Args:
        encoder: the LSTM, of width H / 2 in each direction.
        features: ``[P, V, F]``.
        lengths: ``int64[P]``, number of ops.
    """
    packed = pack_padded_sequence(features, lengths, batch_first=True, enforce_sorted=False)
    outputs, last = encoder(packed)
    padded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=features.shape[1])
    hidden, cell = (torch.cat([state[0], state[1]], dim=1)[None] for state in last)
    return padded, (hidden, cell)
