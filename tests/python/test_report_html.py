"""Tests the page in a browser: what a reader sees, sorts and searches."""

from __future__ import annotations

import builtins
import shutil

import pytest

from opreplay.report.html import write_html

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def stat(median, **change):
    return {
        "median": median, "mean": median, "min": median, "p5": 0.9 * median, "p95": 1.2 * median,
        "iqr": 0.1 * median, "samples": 3, "discarded": 0, "stop_reason": "relative_error",
        "floor": 1.0, "at_floor": False, "route": "loop", "raw": None, **change,
    }  # fmt: skip


def row(op, *, total_us, host_us=None, hot_us=None, device_us=None, **change):
    timing = None if host_us is None else {
        "host_ns": stat(1000 * host_us), "hot_us": None if hot_us is None else stat(hot_us),
        "cold_us": stat(2 * host_us), "latency_us": None, "launch_bound": None,
        "graph_gain": None, "gbps": 1.5,
    }  # fmt: skip
    device = None if device_us is None else {
        "median": device_us, "total": device_us, "self_total": device_us,
    }  # fmt: skip
    return {
        "op": op, "overload": "", "resolved_op": op, "signature": op[-4:] * 4, "step": None,
        "count": 2,
        "recorded_us": {
            "host": {"median": total_us / 2, "total": total_us, "self_total": total_us},
            "device": device,
        },
        "in_graph": False, "kernels_recorded": [], "kernels_us": None, "bytes": 4,
        "flops": None, "tflops": None,
        "kernel_check": {"state": "UNKNOWN", "why": "", "missing": [], "extra": []},
        "schemas_rejected": [], "status": "ok", "reason": None, "detail": "", "assumptions": [],
        "recipe": None, "schema": f"{op}()", "timing": timing, **change,
    }  # fmt: skip


def results(*rows):
    def share(chosen):
        host = sum(r["recorded_us"]["host"]["self_total"] for r in chosen)
        device = sum(
            (r["recorded_us"]["device"] or {"self_total": 0})["self_total"] for r in chosen
        )
        return {
            "count": len(chosen),
            "calls": 2 * len(chosen),
            "host_us": host,
            "device_us": device,
        }

    def by(field):
        names = dict.fromkeys(r[field] for r in rows if r[field])
        return {name: share([r for r in rows if r[field] == name]) for name in names}

    whole = share(rows)
    return {
        "format": "opreplay-results/1",
        "environment": {
            "torch": "2.13", "cpu": "a CPU", "device_name": None, "threads": 2,
            "variables": {"OMP_NUM_THREADS": "2"},
        },
        "command": ["opreplay", "run", "<x>&.json"],
        "rows": list(rows),
        "totals": {
            "signatures": whole["count"], **whole,
            "by_status": by("status"), "by_reason": by("reason"),
        },
    }  # fmt: skip


SKIPPED = {"status": "skipped", "reason": "collective", "detail": "needs a </script> group"}
ON_CPU = results(
    row("aten::mm", total_us=3000.0, host_us=700.0),
    row("aten::add", total_us=1000.0, host_us=20.0, assumptions=["alpha was taken as 1"]),
    row("c10d::reduce", total_us=2000.0, **SKIPPED),
)
ON_GPU = results(
    row(
        "aten::mm",
        total_us=10.0,
        host_us=5.0,
        hot_us=3.0,
        device_us=4.0,
        kernel_check={"state": "MATCH", "why": "", "missing": [], "extra": []},
    ),
    row("aten::add", total_us=10.0, host_us=5.0, hot_us=9.0, device_us=8.0),
)


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no chromium on PATH")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens the page of results, and fails on an error in the console or on any request."""
    said, pages = [], []

    def opened(made):
        path = tmp_path / "page.html"
        write_html(made, path)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        pages.append(page)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("#samples .plotly")
        assert said.pop(0) == path.as_uri()
        return page

    yield opened
    assert said == []
    for page in pages:
        page.close()


def column(page, name):
    heads = page.locator("#rows th").all_inner_texts()
    place = [head.rstrip(" \u25b2\u25bc") for head in heads].index(name) + 1
    return page.locator(f"#rows tbody td:nth-child({place})").all_inner_texts()


def test_rows_are_sorted_by_total_time_and_by_a_click_on_a_heading(open_page):
    page = open_page(ON_CPU)
    assert column(page, "operator") == ["aten::mm", "c10d::reduce", "aten::add"]
    page.click("#rows th:has-text('replayed \u00b5s')")
    assert column(page, "replayed \u00b5s") == ["700.00", "20.00", ""]
    page.click("#rows th:has-text('replayed \u00b5s')")
    assert column(page, "replayed \u00b5s") == ["20.00", "700.00", ""]
    page.click("#rows th:has-text('operator')")
    assert column(page, "operator") == ["aten::add", "aten::mm", "c10d::reduce"]


def test_the_search_looks_at_names_reasons_and_assumptions(open_page):
    page = open_page(ON_CPU)
    for text, expected in {
        "MM": ["aten::mm"], "alpha was": ["aten::add"], "</script>": ["c10d::reduce"], "zz": [],
    }.items():  # fmt: skip
        page.fill("#search", text)
        assert column(page, "operator") == expected
    assert page.inner_text("#shown") == "0 of 3"


def test_the_status_chooses_rows(open_page):
    page = open_page(ON_CPU)
    page.select_option("#status", "skipped")
    assert column(page, "operator") == ["c10d::reduce"]


def test_coverage_tells_the_share_of_time_of_each_reason(open_page):
    page = open_page(ON_CPU)
    lines = page.locator("#coverage tr").all_inner_texts()
    assert [line.split() for line in lines[1:]] == [
        ["all", "3", "6", "6.000", "100.0"],
        ["ok", "2", "4", "4.000", "66.7"],
        ["collective", "1", "2", "2.000", "33.3"],
    ]


def test_recorded_and_replayed_device_times_stand_against_each_other(open_page):
    page = open_page(ON_GPU)
    assert column(page, "recorded \u00b5s") == ["8.00", "4.00"]
    assert column(page, "recorded / replayed") == ["0.89", "1.33"]
    assert column(page, "kernels") == ["", "MATCH"]
    assert "launch-bound" in page.inner_text("#balance")


def test_hovering_over_a_point_tells_its_call(open_page):
    page = open_page(ON_GPU)
    page.locator("#balance .scatterlayer .trace:nth-child(2) .point").first.hover(force=True)
    page.wait_for_selector("#balance .hoverlayer .hovertext")
    assert "aten::mm" in page.locator("#balance .hoverlayer").text_content()


def test_samples_are_drawn_where_they_were_kept(open_page):
    kept = row("aten::mm", total_us=1.0, host_us=2.0)
    kept["timing"]["host_ns"]["raw"] = [1900.0, 2000.0, 2500.0]
    page = open_page(results(kept))
    assert page.locator("#samples .boxlayer .trace").count() == 1
    assert "Samples of the 1 longest" in page.inner_text("#samples")


def test_a_sweep_has_a_curve_for_each_call_over_the_setting_with_most_numbers(open_page):
    def point(call, tokens, kind, **more):
        settings = {"moe.distribution": kind, "num_tokens": tokens}
        return row("_C::moe", total_us=0.0, point={"call": call, "settings": settings}, **more)

    page = open_page(
        results(
            point("a", "8", "zipf", host_us=3.0),
            point("a", "1k", "zipf", host_us=9.0),
            point("a", "8", "uniform", host_us=2.0),
            point("a", "1k", "uniform", **SKIPPED),
            point("b", "8", "zipf", host_us=3.0, hot_us=4.0),
        )
    )
    assert page.locator("#curves .curve").count() == 2
    drawn = page.evaluate(
        "[...document.querySelectorAll('.curve')].map(c => c.data.map(l => [l.name, l.x, l.y]))"
    )
    assert drawn == [
        [["moe.distribution=zipf", [8, 1024], [3, 9]], ["moe.distribution=uniform", [8], [2]]],
        [["moe.distribution=zipf", [8], [4]]],
    ]
    assert "num_tokens=1k" in " ".join(column(page, "point"))
    assert "over num_tokens" in page.inner_text("#curves .curve:first-child")


def test_the_page_fits_1280_pixels(open_page):
    long = row(
        "ns::" + "very_long_name_" * 12, total_us=5e7, host_us=1e6, hot_us=1e6, device_us=1e6,
        inputs="BFloat16[224,4096], " * 20, assumptions=["a guess " * 40],
        kernel_check={"state": "MISMATCH", "why": "", "missing": [], "extra": []},
    )  # fmt: skip
    page = open_page(results(long, *ON_CPU["rows"]))
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_run_without_rows_is_a_page_too(open_page):
    assert open_page(results()).inner_text("#shown") == "0 of 0"


def test_a_missing_library_is_named_with_the_extra(tmp_path, monkeypatch):
    real = builtins.__import__

    def without_jinja(name, *rest, **more):
        if name == "jinja2":
            raise ImportError("no jinja2", name="jinja2")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_jinja)
    with pytest.raises(ImportError, match=r"needs jinja2: pip install 'opreplay\[report\]'"):
        write_html(ON_CPU, tmp_path / "page.html")
