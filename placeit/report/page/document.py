"""Render a page from its sections."""

from __future__ import annotations

from importlib.resources import files
from pathlib import PurePath

from bokeh.embed import file_html
from bokeh.resources import INLINE
from bokeh.themes import Theme
from jinja2 import Environment

from placeit.core.version import __version__
from placeit.profiler.recording import Recording
from placeit.report.page.candidates import candidate_section
from placeit.report.page.facts import costs, environment, events, links
from placeit.report.page.front import front_section
from placeit.report.page.graph import graph
from placeit.report.page.learning import learning
from placeit.report.page.prediction import prediction
from placeit.report.page.requests import requests
from placeit.report.page.section import Picture, Table
from placeit.report.page.texts import texts_section
from placeit.report.page.timeline import timeline
from placeit.report.page.tuning import tuning_section
from placeit.report.page.utilization import samples, utilization
from placeit.report.shown import decision, name_of

__all__ = ["render"]

_SECTIONS = (
    *(candidate_section, tuning_section, texts_section, front_section, timeline, utilization, graph, costs, prediction),
    *(learning, links, requests, events, samples, environment),
)


def render(recording: Recording) -> str:
    """Return the page of a recording; sections without data are left out."""
    sections = [section for make in _SECTIONS if (section := make(recording)) is not None]
    pictures = [part.model for section in sections for part in section.parts if isinstance(part, Picture)]
    here = files(__package__)
    template = Environment(autoescape=True).from_string((here / "page.html").read_text(encoding="utf-8"))
    inner = (here / "inner.css").read_text(encoding="utf-8")
    title = f"{name_of(PurePath(recording.model.name).name)} – placeit"
    page: str = file_html(
        pictures,
        INLINE,
        title,
        template=template,
        template_variables={
            "style": (here / "page.css").read_text(encoding="utf-8"),
            "sections": sections,
            "decision": decision(recording),
            "model": name_of(recording.model.name),
            "made": name_of(recording.made),
            "placeit": __version__,
            "is_table": lambda part: isinstance(part, Table),
        },
        theme=Theme(json={"attrs": {"UIElement": {"stylesheets": [inner]}}}),
        suppress_callback_warning=True,
    )
    return page
