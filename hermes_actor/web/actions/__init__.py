"""Actions, by subject: one :class:`Action` for each change that a person can make."""

from __future__ import annotations

from hermes_actor.web.actions import agents, sessions, stores
from hermes_actor.web.actions.action import Action, perform, previewed

__all__ = ["ACTIONS", "Action", "perform", "previewed"]

ACTIONS: dict[str, Action] = {
    action.name: action for subject in (sessions, stores, agents) for action in subject.ACTIONS
}
"""Every action by its name, which is the last part of its address."""
