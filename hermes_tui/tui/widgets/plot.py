"""A trend plot: one or two numbers over the training steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static
from textual_plotext import PlotextPlot

from hermes_tui.tui.widgets.formatting import number

MAX_POINTS = 120
"""Newest steps to draw: two for each of 60 columns, as many as a plot can show."""

LABEL_CELLS = 6
"""Width of the labels at the left, so that plots above each other line up."""

AXIS_HEIGHT = 7
"""Least height, in rows, that leaves room for step numbers under the plot."""

Points = Sequence[tuple[int, float]]
"""Step and value, in order of the steps."""


class TrendPlot(Vertical):
    """A title with the newest value, over a plot that is redrawn only when its points change.

    Args:
        title: the number's name.
        second: the name of the second number; empty for none.
        low: value at the bottom, or the lowest point if that is lower; None is the lowest point.
        high: value at the top, or the highest point if that is higher; None is the highest point.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"trend--first", "trend--second"}

    def __init__(
        self, title: str, second: str = "", low: float | None = None, high: float | None = None
    ) -> None:
        super().__init__(classes="trend")
        self._title = title
        self._second = second
        self._low, self._high = low, high
        self._points: tuple[Points, Points] = ((), ())

    def compose(self) -> ComposeResult:
        """Lay out title and plot."""
        yield Static(classes="trend-title")
        plot = PlotextPlot()
        plot.theme = "clear"  # colours come from the style sheet
        yield plot

    def show(self, first: Points, second: Points = ()) -> None:
        """Show these points; NaN values are left out."""
        points = tuple(
            [(step, value) for step, value in series if value == value][-MAX_POINTS:]
            for series in (first, second)
        )
        if points != self._points:
            self._points = (points[0], points[1])
            self._draw()

    def on_mount(self) -> None:
        """Draw the title at least."""
        self._draw()

    def on_resize(self, _: events.Resize) -> None:
        """Draw at the new size."""
        self._draw()

    def notify_style_update(self) -> None:
        """Draw in the new theme's colours."""
        super().notify_style_update()
        if self.is_mounted and self.query(PlotextPlot):
            self._draw()

    def _draw(self) -> None:
        first, second = self._points
        title = Content.assemble((f"{self._title} ", "bold"), _newest(first))
        if self._second:
            title += Content.assemble((f"  ┈ {self._second} ", "dim"), (_newest(second), "dim"))
        self.query_one(".trend-title", Static).update(title)
        plot = self.query_one(PlotextPlot)
        plot.plt.clear_figure()
        plot.display = bool(first)
        if first:
            self._lines(plot)
        plot.refresh()

    def _lines(self, plot: PlotextPlot) -> None:
        first, second = self._points
        values = [value for _, value in (*first, *second)]
        low = min(values) if self._low is None else min(self._low, *values)
        high = max(values) if self._high is None else max(self._high, *values)
        if high <= low:  # equal values are drawn in the middle, zeros at the bottom
            margin = abs(low) / 2
            low, high = (low - margin, high + margin) if margin else (0.0, 1.0)
        for points, name in ((second, "second"), (first, "first")):
            if points:
                colour = self.get_component_styles(f"trend--{name}").color.rgb
                steps, drawn = [step for step, _ in points], [value for _, value in points]
                marker = (
                    "braille" if len(points) > 1 else "dot"
                )  # a single braille dot is hard to see
                plot.plt.plot(steps, drawn, marker=marker, color=colour)
        begin, end = first[0][0], first[-1][0]
        plot.plt.xlim(begin, max(end, begin + 1))
        plot.plt.ylim(low, high)
        plot.plt.yticks([low, high], [f"{number(v, 2):>{LABEL_CELLS}}" for v in (low, high)])
        roomy = self.size.height >= AXIS_HEIGHT
        plot.plt.xaxes(roomy, False)
        plot.plt.yaxes(True, False)
        plot.plt.xticks(*(([begin, end], [str(begin), str(end)]) if roomy else ([], [])))


def _newest(points: Points) -> str:
    return number(points[-1][1]) if points else "–"
