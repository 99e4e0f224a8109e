"""Views, by subject: one :class:`View` for each page."""

from __future__ import annotations

from hermes_actor.web.views import actor, agents, gateway, insights, search, sessions
from hermes_actor.web.views.view import View

__all__ = ["VIEWS", "View"]

VIEWS: dict[str, View] = {
    view.name: view
    for subject in (sessions, search, insights, gateway, agents, actor)
    for view in subject.VIEWS
}
"""Every view by its name, which is the last part of its address."""
