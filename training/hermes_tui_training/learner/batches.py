"""Samples as padded tensors, a few at a time.

Shape legend: B samples, T tokens of the longest, N trained tokens of the batch, C its completions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hermes_tui_training.api.types import TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples that go through the model together, padded on the right.

    The N trained tokens are those of sample 0 in order, then those of sample 1, and so on.
    """

    samples: tuple[TrainingSample, ...]
    """The B samples."""
    token_ids_BT: Tensor
    """[B, T] int64; 0 in padding."""
    attention_mask_BT: Tensor
    """[B, T] int64; 0 in padding."""
    loss_mask_BT: Tensor
    """[B, T] bool; false in padding, and for a first token: nothing predicts it."""
    targets_N: Tensor
    """[N] int64, the tokens that were sampled."""
    temperatures_N: Tensor
    """[N] float32."""
    behavior_logprobs_N: Tensor
    """[N] float32, natural log."""
    advantages_C: Tensor
    """[C] float32."""
    span_sizes_C: Tensor
    """[C] int64: trained tokens of each completion; they sum to N."""

    def per_token(self, values_C: Tensor) -> Tensor:
        """Return [N]: each completion's value at each of its tokens."""
        return values_C.repeat_interleave(self.span_sizes_C)

    def per_completion(self, values_N: Tensor) -> Tensor:
        """Return [C]: the mean over each completion's tokens."""
        return torch.stack(
            [part.mean() for part in torch.split(values_N, self.span_sizes_C.tolist())]
        )

    def split(self, values_N: Tensor) -> list[Tensor]:
        """Return per-token values sample by sample."""
        sizes = [sample.num_trainable_tokens for sample in self.samples]
        return list(torch.split(values_N, sizes))


def make_batches(
    samples: Sequence[TrainingSample], max_tokens: int, device: torch.device
) -> list[Batch]:
    """Return the samples in batches of about the same length, longest first.

    Args:
        samples: at least one.
        max_tokens: padded tokens in a batch; a longer sample is a batch of its own.
        device: where the tensors go.
    Raises: ValueError: the loss is on a sample's first token, which nothing predicts.
    """
    if any(sample.loss_mask[0] for sample in samples):
        raise ValueError("a sample's first token cannot be trained: nothing predicts it")
    groups: list[list[TrainingSample]] = []
    for sample in sorted(samples, key=lambda s: len(s.token_ids), reverse=True):
        # The first sample of a group is its longest: all others are padded to it.
        if groups and (len(groups[-1]) + 1) * len(groups[-1][0].token_ids) <= max_tokens:
            groups[-1].append(sample)
        else:
            groups.append([sample])
    return [_batch(group, device) for group in groups]


def _batch(samples: Sequence[TrainingSample], device: torch.device) -> Batch:
    ids = [torch.tensor(s.token_ids) for s in samples]
    masks = [torch.tensor(s.loss_mask) for s in samples]
    loss_mask_BT = pad_sequence(masks, batch_first=True)
    token_ids_BT = pad_sequence(ids, batch_first=True)

    behavior = [torch.tensor(s.behavior_logprobs, dtype=torch.float32) for s in samples]
    # Padding and the mask's order are those of the samples, so spans line up with the N tokens.
    spans = [span for sample in samples for span in sample.spans]
    span_sizes_C = torch.tensor([span.num_tokens for span in spans])
    temperatures_C = torch.tensor([float(span.temperature) for span in spans])

    return Batch(
        samples=tuple(samples),
        token_ids_BT=token_ids_BT.to(device),
        attention_mask_BT=pad_sequence([torch.ones_like(i) for i in ids], batch_first=True).to(
            device
        ),
        loss_mask_BT=loss_mask_BT.to(device),
        targets_N=token_ids_BT[loss_mask_BT].to(device),
        temperatures_N=temperatures_C.repeat_interleave(span_sizes_C).to(device),
        behavior_logprobs_N=pad_sequence(behavior, batch_first=True)[loss_mask_BT].to(device),
        advantages_C=torch.tensor([float(span.advantage) for span in spans]).to(device),
        span_sizes_C=span_sizes_C.to(device),
    )
