"""The report page in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.report.made_recordings import a_front, a_recording, a_search

# all elements, also those inside of shadow roots, in which Bokeh draws
_ALL = """
const found = [];
const walk = (root) => {
  for (const one of root.querySelectorAll("*")) {
    found.push(one);
    if (one.shadowRoot) walk(one.shadowRoot);
  }
};
walk(document);
"""
_PLOTS = "const plots = Bokeh.documents[0].all_models; const named = (type) => [...plots].filter((one) => one.type == type);"


@pytest.fixture(scope="module")
def page(browse: Callable[..., Any]) -> Any:
    return browse(replace(a_recording(), search=a_search()))


def _button(page: Any, label: str) -> Any:
    return page.execute_script(
        _ALL + "return found.find((one) => one.tagName == 'BUTTON' && one.textContent == arguments[0]);", label
    )


def _axis(page: Any) -> list[list[float]]:
    """Ends of the x axis of each timeline."""
    script = """
      const shown = named("Figure").filter((one) => /^Measured|^Best|^Simulated/.test(one.title?.text ?? ""));
      return shown.map((one) => [one.x_range.start, one.x_range.end]);
    """
    return page.execute_script(_PLOTS + script)


def _shown(page: Any, where: str = ".details") -> str:
    script = _ALL + "return found.find((one) => one.matches(arguments[0])).shadowRoot.textContent;"
    return page.execute_script(script, where)


def _wait(page: Any, where: str, text: str) -> None:
    """Wait until the page shows a text: what is typed is looked up a moment later."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(page, 60).until(lambda _: text in _shown(page, where))


def _errors(page: Any) -> list[str]:
    return [entry["message"] for entry in page.get_log("browser") if entry["level"] == "SEVERE"]


def test_a_page_opens_without_an_error_and_shows_every_section_it_has_data_for(page: Any) -> None:
    assert _errors(page) == []
    headings = [heading.text for heading in page.find_elements("css selector", "h2")]
    assert headings == [
        "Candidates",
        "Timeline",
        "Utilisation",
        "Task graph and ops",
        "Simulated against measured",
        "Learning",
        "Links",
        "Meters",
        "Environment",
    ]
    assert "annealing is chosen: in the deciding race it takes 0.785" in page.find_element("css selector", ".decision").text


def test_zooming_changes_the_axis_of_all_timelines(page: Any) -> None:
    before = _axis(page)
    assert len(before) == 3
    _button(page, "Zoom in").click()
    after = _axis(page)
    assert after[0] == after[1] == after[2]
    assert after[0][1] - after[0][0] == pytest.approx((before[0][1] - before[0][0]) / 2)
    _button(page, "Show all").click()
    assert _axis(page) == before


def test_the_keyboard_zooms(page: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    before = _axis(page)
    page.execute_script("arguments[0].focus();", _button(page, "Zoom out"))
    ActionChains(page).send_keys(Keys.ENTER).perform()
    assert _axis(page)[0][1] > before[0][1]


def test_a_click_on_an_op_shows_its_details(page: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    place = page.execute_script(
        _PLOTS
        + """
        const views = [...Bokeh.index.all_views()];
        const view = views.find((one) => one.model.name == "graph");
        view.el.scrollIntoView({block: "center", behavior: "instant"});
        const marks = view.model.renderers.find((one) => one.data_source?.data?.shapes != null);
        const {x, y, name} = marks.data_source.data;
        const i = name.indexOf("block1/maxpool_9");
        const box = view.canvas_view.el.getBoundingClientRect();
        return [box.left + view.frame.x_scale.compute(x[i]), box.top + view.frame.y_scale.compute(y[i])];
        """
    )
    actions = ActionChains(page)
    actions.w3c_actions.pointer_action.move_to_location(*[round(at) for at in place])
    actions.w3c_actions.pointer_action.click()
    actions.perform()
    shown = _shown(page)
    assert "block1/maxpool_9" in shown
    assert "MaxPool, segment 1 on CPU@1" in shown
    assert "1×64×56×56" in shown


def test_the_search_finds_ops_by_name_or_kind(page: Any) -> None:
    box = page.execute_script(_ALL + "return found.find((one) => one.tagName == 'INPUT');")
    box.send_keys("matmul")
    _wait(page, ".found", "6 ops found")
    assert "block0/matmul_4" in _shown(page)


def test_a_large_graph_shows_devices_as_lines_until_its_ops_have_room(browse: Callable[..., Any]) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    page = browse(a_recording(ops=5_000))
    script = (
        _PLOTS
        + """
      const graph = named("Figure").find((one) => one.name == "graph");
      const of = (column) => graph.renderers.find((one) => one.data_source?.data?.[column] != null && one.glyph.type != "Text");
      if (arguments[0]) graph.x_range.setv({start: 0, end: 30});
      return [of("x1").visible, of("shapes").visible, of("x1").data_source.get_length()];
    """
    )
    lines, marks, number = page.execute_script(script, False)
    assert (lines, marks) == (True, False)
    assert 2 <= number < 5_000
    WebDriverWait(page, 60).until(lambda _: page.execute_script(script, True)[:2] == [False, True])


def test_a_page_asks_the_network_for_nothing(page: Any) -> None:
    assert page.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)") == []
    assert "default-src 'none'" in page.find_element(
        "css selector", "meta[http-equiv='Content-Security-Policy']"
    ).get_attribute("content")


def test_names_with_markup_are_text(browse: Callable[..., Any]) -> None:
    names = {
        0: "<img src=x onerror=\"document.title='run'\">",
        1: "</script><script>document.title='run'</script>",
        2: "&lt;b&gt; $$x^2$$ @{name} ${1}",
        3: "emoji 🎉 \x00\x1b[31m\u202e",
        4: "long" * 2500,
    }
    page = browse(replace(a_recording(10, names=names), search=a_search() | {"pareto": a_front()}))
    assert page.execute_script(_PLOTS + "return named('Step').length;") > 0
    box = page.execute_script(_ALL + "return found.find((one) => one.tagName == 'INPUT');")
    wanted = {
        "<img": names[0],
        "</script": names[1],
        "&lt;": names[2],
        "emoji": "emoji 🎉 ??[31m?",
        "longlong": "… (10000 characters) …",
    }
    for part, text in wanted.items():
        box.clear()
        box.send_keys(part)
        _wait(page, ".details", text)
    assert _errors(page) == []
    assert page.title == "model.onnx – placeit"


@pytest.mark.parametrize(("width", "dark"), [(400, True), (1280, False)], ids=["narrow and dark", "wide and light"])
def test_a_page_is_no_wider_than_the_window_and_takes_its_colours(browse: Callable[..., Any], width: int, dark: bool) -> None:
    page = browse(replace(a_recording(), search=a_search()), width=width, dark=dark)
    assert page.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    cut = page.execute_script(
        _ALL
        + "const right = (one) => one.getBoundingClientRect().right;"
        + "const long = found.filter((one) => one.matches?.('.bk-item') && right(one) > window.innerWidth);"
        + "const wide = found.filter((one) => one.matches('.table') && one.scrollWidth > one.clientWidth);"
        + "return [long.length, wide.length];"
    )
    assert cut[0] == 0, "an entry of a legend is cut"
    assert width < 1280 or cut[1] == 0, "a table is wider than the page"
    titles = [one.text for one in page.execute_script(_ALL + "return found.filter((one) => one.matches('.title'));")]
    assert "Best single device, CPU@0: 20.5 ms" in titles
    red = int(page.execute_script("return getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"))
    assert (red < 64) == dark
