"""What a variant does, observed: each capability is asked for and the answer is tested.

`observe` runs any registered variant, a user's own included, through probes that know nothing of
its declaration, and holds what they saw beside what it declares.
"""

from efficient_attn.attention.conformance.finding import Check, Finding, Observation
from efficient_attn.attention.conformance.observe import observe

__all__ = ["Check", "Finding", "Observation", "observe"]
