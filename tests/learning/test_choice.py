from __future__ import annotations

import numpy as np
import torch

from placeit.learning.agents.choice import draw_choice, log_probabilities, score_choice

LOGITS = torch.tensor([[0.0, 2.0, -1.0, 9.0], [1.0, 1.0, 1.0, 1.0]])
ALLOWED = np.array([[True, True, True, False], [False, True, False, False]])


def test_barred_options_are_never_drawn_and_others_as_often_as_their_probability_says():
    rng = np.random.default_rng(0)
    drawn = np.array([draw_choice(LOGITS, ALLOWED, rng) for _ in range(4000)])
    for row in range(2):
        share = np.bincount(drawn[:, row], minlength=4) / 4000
        np.testing.assert_allclose(share, log_probabilities(LOGITS, ALLOWED)[row].exp().numpy(), atol=0.03)
        assert not share[~ALLOWED[row]].any()


def test_a_single_option_has_probability_one_no_entropy_and_finite_gradients():
    logits = LOGITS.clone().requires_grad_()
    log, entropy = score_choice(logits, ALLOWED, np.array([1, 1]))
    assert log[1] == 0
    assert entropy[1] == 0
    (log + entropy).sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert not logits.grad[~torch.from_numpy(ALLOWED)].any()


def test_the_entropy_is_minus_the_mean_log_probability():
    log, entropy = score_choice(LOGITS[:1].expand(3, 4), ALLOWED[:1].repeat(3, 0), np.arange(3))
    assert torch.isclose(-(log.exp() * log).sum(), entropy[0])
