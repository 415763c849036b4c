"""The texts of the page in HTML, from one place that escapes: of what they are filled with nothing becomes HTML.

Why: docs/decisions/0084-who-may-look.md
"""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from bokeh.models.css import InlineStyleSheet
from bokeh.models.widgets import Div

from stream_server.machine.screen import escaped

STYLE = """
:host { color: #222; font-family: system-ui, sans-serif; font-size: 13px; }
h1 { font-size: 18px; margin: 0; } h2 { font-size: 14px; margin: 0 0 4px; }
table.facts { border-collapse: collapse; }
table.facts th { text-align: left; font-weight: 600; padding: 1px 12px 1px 0; white-space: nowrap; }
table.facts th, table.facts td { vertical-align: top; }
table.facts td { padding: 1px 0; overflow-wrap: anywhere; }
.legend { line-height: 1.7; } .entry { margin-right: 12px; white-space: nowrap; }
.square { display: inline-block; width: 11px; height: 11px; margin-right: 4px; vertical-align: -1px; }
.problem, .said { padding: 6px 10px; margin: 2px 0; overflow-wrap: anywhere; }
.problem { background: #FDECE6; border-left: 4px solid #D55E00; }
.said { background: #E8F3FA; border-left: 4px solid #0072B2; }
pre { background: #F6F6F6; margin: 0; width: 100%; box-sizing: border-box; padding: 8px; height: 290px;
      overflow: auto; white-space: pre-wrap;
      overflow-wrap: anywhere; font-size: 12px; display: flex; flex-direction: column-reverse; }
"""

# What Bokeh puts the page into is empty until the browser has its scripts and the websocket is up. The scripts that
# Bokeh writes into the page have the number that the policy of the server asks of them.
TEMPLATE = """{% block preamble %}
<link rel="icon" href="data:,">
<style>
[data-root-id]:empty::before { content: "Stream Study is loading …"; font: 14px sans-serif; margin: 16px }
</style>
{% endblock %}
{% block js_resources %}{{ bokeh_js | replace("<script>", '<script nonce="' + nonce + '">') }}{% endblock %}
{% block inner_body %}
{{ self.contents() }}
{{ plot_script | replace("<script>", '<script nonce="' + nonce + '">') }}
{% endblock %}"""


class Html(str):
    """Text that a browser may take for HTML."""

    __slots__ = ()


EMPTY = Html()


def fill(template: str, **values: object) -> Html:
    """HTML with these values in their places, as text unless they are `Html` themselves."""
    texts = {name: value if isinstance(value, Html) else escape(escaped(str(value))) for name, value in values.items()}
    return Html(template.format(**texts))


def join(parts: Iterable[Html]) -> Html:
    """Several parts after each other."""
    return Html("".join(parts))


def label(text: str) -> str:
    """A text for a widget that takes it for HTML."""
    return str(fill("{text}", text=text))


def div(text: Html = EMPTY, **options: Any) -> Div:
    """A text of the page, in which no formula is looked for."""
    styled = {"stylesheets": [InlineStyleSheet(css=STYLE)], "sizing_mode": "stretch_width"}
    return Div(text=str(text), disable_math=True, **(styled | options))


def say(div: Div, text: Html) -> None:
    """Show another text, if it is another one."""
    if div.text != text:
        div.text = str(text)


def heading(text: str, below: str = "") -> Html:
    return fill("<h2>{text}</h2>{below}", text=text, below=below)


def table(rows: Iterable[tuple[str, str]]) -> Html:
    """A table of names and values."""
    cells = (fill("<tr><th>{name}</th><td>{value}</td></tr>", name=name, value=value) for name, value in rows)
    return fill('<table class="facts">{cells}</table>', cells=join(cells))


def legend(colours: Mapping[str, str]) -> Html:
    """Names beside squares of their colours."""
    entry = '<span class="entry"><span class="square" style="background:{colour}"></span>{name}</span>'
    entries = (fill(entry, colour=colour, name=name) for name, colour in colours.items())
    return fill('<div class="legend">{entries}</div>', entries=join(entries))


def messages(problems: Iterable[str], notice: str) -> Html:
    """The problem with a run, and the answer of its study."""
    lines = [("problem", problem) for problem in problems] + ([("said", notice)] if notice else [])
    return join(fill('<div class="{kind}">{text}</div>', kind=kind, text=text) for kind, text in lines)


def log(text: str) -> Html:
    return fill("<pre><code>{text}</code></pre>", text=text)


def title(folder: object, about: str) -> Html:
    """The first line of the page."""
    return fill("<h1>Stream Study</h1>{folder}, {about}", folder=folder, about=about)


def question(what: str, run: str) -> Html:
    return fill("{what}: <b>{run}</b>?", what=what, run=run)


def no_run(folder: object) -> Html:
    """Advice for a folder without a run."""
    return fill(NO_RUN, folder=folder)


NO_RUN = """<h2>There is no run in {folder} yet</h2>
<p>Start one in this folder, and it appears here by itself:</p>
<pre style="height:auto; display:block">stream-study new heat my-study
cd my-study
mpirun -n 2 stream-server --config study.json</pre>
<p>Or give <code>stream-study serve</code> the folder that has your runs.</p>"""

NO_CURVES = Html("""<h2>There are no curves yet</h2>
<p>They begin when the training has logged for the first time; <code>training.log_every_batches</code> says how often it
does.</p>""")
