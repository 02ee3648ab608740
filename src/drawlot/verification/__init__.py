"""Drafts to accepted tokens: the stateful `RejectionSampler`, and the draws of a drafter."""

from drawlot.verification.draft_sampler import DraftSampler
from drawlot.verification.rejection_sampler import RejectionSampler

__all__ = ["DraftSampler", "RejectionSampler"]
