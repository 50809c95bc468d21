"""A memory budget: the plans for a piece of work, the one in use, and the measured peak.

    budget = Budget(found, choose(found, budget_bytes), Guard(budget_bytes), corrections, base_id)
    budget.begin(budget.option)
    smaller = budget.after_step()  # another option where the peak has passed the budget

Which plan is next is decided here; the engine that holds the budget computes by it.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from edge_client.errors import Failed
from edge_client.planning.allocator import trim
from edge_client.planning.corrections import Corrections, Key
from edge_client.planning.guard import PeakGuard
from edge_client.planning.plan import Plan, give_same_bytes
from edge_client.planning.planner import Option, estimate, next_smaller, plan_in_words
from edge_client.planning.sizes import size_text

log = logging.getLogger(__name__)


class MemoryRanOut(Failed):
    """Even the smallest plan needs more memory than there is."""


class Budget:
    """Steps down instead of dying.

    Args:
        found: Every plan there is for this work.
        option: The one chosen.
        guard: Watches the peak, of this process or on a CUDA device.
        corrections: Where peaks are remembered, or None.
        base_id: SHA-256 of the base, under which they are.

    Attributes:
        option: The one in use.
        guard: Watches the peak.
    """

    def __init__(
        self,
        found: Sequence[Option],
        option: Option,
        guard: PeakGuard,
        corrections: Corrections | None,
        base_id: str,
    ) -> None:
        self._found, self.option, self.guard = found, option, guard
        self._corrections, self._base_id = corrections, base_id
        self._longest = 0  # tokens of the longest batch by the plan in use
        self._is_cornered = False  # no smaller plan is left

    def option_of(self, plan: Plan) -> Option:
        """The option of a plan.

        Raises:
            ValueError: None found for this work has it.
        """
        option = next((option for option in self._found if option.plan == plan), None)
        if option is None:
            raise ValueError(f"{plan} is not a plan for this work")
        return option

    def like(self, plan: Plan) -> Plan | None:
        """A plan that fits and gives the same bytes as one of before: that one, or the preferred.

        Returns:
            None where there is none.
        """
        budget_bytes = self.guard.budget_bytes
        same = [option for option in self._found if give_same_bytes(option.plan, plan)]
        fitting = [o.plan for o in same if o.predicted_peak_bytes <= budget_bytes]
        if self.option in same:  # the one in use, whatever is predicted of it
            fitting.append(self.option.plan)
        return plan if plan in fitting else next(iter(fitting), None)

    def begin(self, option: Option) -> None:
        """Measure an option from here on; memory that is free goes back first."""
        self.option, self._is_cornered = option, False
        trim()
        self.restart()

    def restart(self) -> None:
        """Forget the peak so far."""
        self._longest = 0
        self.guard.reset()

    def before_step(self, tokens: int) -> None:
        """Note that a step begins, on texts of that many tokens."""
        self._longest = max(self._longest, tokens)

    def after_failure(self) -> Option:
        """The plan to continue with after a failed allocation.

        Raises:
            MemoryRanOut: There is no smaller plan.
        """
        smaller = next_smaller(self._found, self.option)
        if smaller is None:
            size = size_text(self.option.predicted_peak_bytes)
            raise MemoryRanOut(
                f"memory ran out in the smallest plan ({size} predicted); free some, lower "
                "--tokens or pack the base with fewer --bits"
            )
        log.warning("memory ran out; going on with %s", plan_in_words(smaller))
        return smaller

    def after_step(self) -> Option | None:
        """The plan to continue with if the peak has passed the budget and a smaller plan exists."""
        if self._is_cornered or not self.guard.is_over():
            return None
        peak, smaller = self.guard.peak_bytes() or 0, next_smaller(self._found, self.option)
        log.warning(
            "peak %s of %s allowed; %s",
            size_text(peak),
            size_text(self.guard.budget_bytes),
            f"going on with {plan_in_words(smaller)}" if smaller else "no smaller plan is left",
        )
        self.remember()
        self._is_cornered = smaller is None
        return smaller

    def remember(self) -> None:
        """Let the peak measured by the option in use correct what is predicted next time."""
        peak = self.guard.peak_bytes()
        if self._corrections is None or not self._longest or peak is None:
            return
        work = self.option.work
        plan = replace(self.option.plan, tokens=min(self._longest, self.option.plan.tokens))
        key = Key(self._base_id, work.computer, work.what, plan.dtype)
        estimated = estimate(work, plan, self.option.memory.runtime).total
        try:
            self._corrections.record(key, plan, estimated, peak)
        except OSError as error:
            log.warning("the round's peak could not be remembered: %s", error)
