"""The web page in a browser: translations, alignments, errors, keys, themes and the keyboard."""

import json
import re
import shutil

import pytest
from copy_artifact import COPY_STEPS, make, make_with_options
from running_service import site as running_site

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="The page is tested in a browser, driven by playwright."
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason=f"No browser is installed: {', '.join(NAMES)}."
)

expect = sync_api.expect
TEXT = "a man on a bike"


def hypothesis(text, score, tokens, alignment, source_tokens=("das", " R", "ad", "</s>")):
    result = {"text": text, "score": score, "tokens": tokens, "alignment": alignment}
    return {**result, "source_tokens": source_tokens, "error": None}


# "bike" and "Rad" consist of two tokens each.
WEIGHTS = [[0.8, 0.1, 0.1, 0], [0.1, 0.6, 0.3, 0], [0, 0.2, 0.7, 0.1], [0, 0, 0, 1]]
BEST = hypothesis("the bike", -0.25, ["the", " bi", "ke", "</s>"], WEIGHTS)
SECOND = hypothesis("a", -2.5, ["a"], [[0.5, 0.5, 0, 0]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Yield the address of a service with two models that copy their source.

    The search of the second one has options.
    """
    search = {"class": "BeamSearch", "size": 2}
    folder = tmp_path_factory.mktemp("page")
    sources = {
        "copy": make(folder / "copy", steps=COPY_STEPS, search=search),
        "options": make_with_options(folder / "options", steps=COPY_STEPS),
    }
    with running_site(sources) as running:
        yield running.service.url


@pytest.fixture(scope="module")
def tab(site):
    """Yield a browser tab for all tests that records its problems and requested addresses."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(has_touch=True)
        tab.problems, tab.addresses = [], []
        tab.on("console", lambda message: tab.problems.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: tab.problems.append(str(error)))
        tab.on("dialog", lambda dialog: tab.problems.append(dialog.message))
        tab.on("request", lambda request: tab.addresses.append(request.url))
        # Interception that starts with the first stub of an open page may miss the next request.
        # This route, which no request has, keeps it on for all pages.
        tab.context.route("**/nothing", lambda route: route.abort())
        yield tab
        browser.close()


@pytest.fixture
def page(tab, site):
    """Open the page as a new visitor; afterwards, check that the browser reported no problem."""
    tab.set_viewport_size({"width": 1200, "height": 900})
    tab.emulate_media(color_scheme="light")
    tab.mouse.move(0, 0)
    tab.goto(site)
    yield tab
    tab.evaluate("localStorage.clear(); sessionStorage.clear()")
    tab.unroute_all()
    problems, addresses = tab.problems[:], tab.addresses[:]
    tab.problems.clear()
    tab.addresses.clear()
    # The browser reports every response with an error status.
    assert [problem for problem in problems if "Failed to load resource" not in problem] == []
    assert {url for url in addresses if not url.startswith((site, "data:"))} == set()


def stub_response(page, path, body, status=200, **headers):
    """Replace the service's response to a path."""
    text = body if isinstance(body, str) else json.dumps(body)
    page.route(f"**/{path}", lambda route: route.fulfill(status=status, body=text, headers=headers))


def stub_models(page, streams=True, **max_characters):
    """Open the page of a service with these models."""
    common = {"versions": ["1"], "streams": streams, "n_best": 4}
    models = [
        {"name": name, **common, "max_characters": limit} for name, limit in max_characters.items()
    ]
    stub_response(page, "models", {"models": models})
    page.reload()


def translate(page, text=TEXT):
    page.fill("#source", text)
    page.keyboard.press("Control+Enter")
    page.locator("#stop").wait_for(state="hidden")
    expect(page.locator("#status")).to_have_text(re.compile("Translated in"))


def stub_translations(page, *hypotheses):
    """Return these hypotheses from every translation, like a model that cannot stream."""
    stub_response(page, "translate/stream", {"code": "conflict"}, 409)
    stub_response(page, "translate", {"translations": [hypotheses]})


def translate_example(page):
    stub_translations(page, BEST, SECOND)
    translate(page, "das Rad")


def words(page, side):
    return page.locator(f"#{side}-words .word")


def weights(page, side):
    """Return how strongly each word is highlighted, 0 if it is not."""
    return words(page, side).evaluate_all(
        "all => all.map(word => word.classList.contains('lit')"
        " ? Number(word.style.getPropertyValue('--weight')) : 0)"
    )


def lit_cells(page):
    """Return [row, column] of the highlighted cells."""
    return page.locator("#heatmap td.lit").evaluate_all(
        "all => all.map(cell => [Number(cell.dataset.target), Number(cell.dataset.source)])"
    )


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_translation_appears_token_by_token(page):
    page.eval_on_selector(
        "#translation",
        """box => {
            const { get, set } = Object.getOwnPropertyDescriptor(
                HTMLTextAreaElement.prototype, "value"
            );
            window.shown = [];
            Object.defineProperty(box, "value", {
                get() { return get.call(box); },
                set(value) { window.shown.push(value); set.call(box, value); },
            });
        }""",
    )
    translate(page)
    expect(page.locator("#translation")).to_have_value(TEXT)
    empty, *growing, streamed, searched = page.evaluate("window.shown")
    assert empty == "" and len(growing) > 2 and streamed == searched == TEXT
    assert all(TEXT.startswith(text) for text in growing) and growing == sorted(growing, key=len)


def test_alternatives_are_listed_and_shown(page):
    translate_example(page)
    items = page.locator("#hypotheses li")
    expect(items).to_have_text(["the bike−0.25", "a−2.50"])
    expect(page.locator("#translation")).to_have_value("the bike")
    page.get_by_label("a−2.50", exact=True).check()
    expect(page.locator("#translation")).to_have_value("a")
    expect(words(page, "target")).to_have_text(["a"])


def test_heatmap_has_a_cell_for_each_pair_of_words(page):
    translate_example(page)
    cells = page.locator("#heatmap td[data-target]")
    # Rows are means of their tokens, columns are sums: (0.1 + 0.0) / 2 and (0.9 + 0.9) / 2.
    expect(cells).to_have_text(["80", "20", "0", "5", "90", "5", "0", "0", "100"])
    expect(page.locator("#heatmap th[scope=col]")).to_have_text(["das", "Rad", "end"])
    expect(page.locator("#heatmap th[scope=row]")).to_have_text(["the", "bike", "end"])
    page.uncheck("#grouped")
    expect(cells).to_have_count(16)
    expect(page.locator("#heatmap th[scope=row]")).to_have_text(["the", "bi", "ke", "end"])


def test_pointing_at_a_target_word_highlights_its_sources(page):
    translate_example(page)
    words(page, "target").nth(1).hover()
    assert weights(page, "source") == pytest.approx([0.05, 0.9, 0.05])
    assert weights(page, "target") == [0, 0, 0]
    assert lit_cells(page) == [[1, 0], [1, 1], [1, 2]]
    detail = "“bike” came from “Rad” 90%, “das” 5%, end of sentence 5%"
    expect(page.locator("#detail")).to_have_text(detail)
    page.hover("h1")
    assert weights(page, "source") == [0, 0, 0] and lit_cells(page) == []


def test_pointing_at_a_source_word_highlights_its_targets(page):
    translate_example(page)
    words(page, "source").nth(0).hover()
    assert weights(page, "target") == pytest.approx([0.8, 0.05, 0])
    assert lit_cells(page) == [[0, 0], [1, 0], [2, 0]]
    expect(page.locator("#detail")).to_have_text("“das” went to “the” 80%, “bike” 5%")
    shades = words(page, "target").evaluate_all(
        "all => all.map(word => getComputedStyle(word).backgroundColor)"
    )
    alphas = [float(re.search(r"/ ([\d.]+)\)", shade)[1]) for shade in shades[:2]]
    assert alphas == pytest.approx([0.8, 0.05], abs=0.01)


def test_pointing_at_a_cell_highlights_its_row_its_column_and_both_words(page):
    translate_example(page)
    page.hover("#heatmap td[data-target='1'][data-source='0']")
    assert weights(page, "source") == pytest.approx([0.05, 0, 0])
    assert weights(page, "target") == pytest.approx([0, 0.05, 0])
    assert lit_cells(page) == [[0, 0], [1, 0], [1, 1], [1, 2], [2, 0]]
    expect(page.locator("#detail")).to_have_text("“bike” from “das” 5%")
    page.hover("#heatmap th[data-target='0']")
    assert weights(page, "source") == pytest.approx([0.8, 0.2, 0])


def test_words_of_a_copy_are_aligned_with_themselves(page):
    translate(page)
    expect(words(page, "target")).to_have_text([*TEXT.split(), "end"])
    for side, opposite in (("target", "source"), ("source", "target")):
        for place in range(6):
            words(page, side).nth(place).hover()
            assert weights(page, opposite) == [float(k == place) for k in range(6)]


def test_a_touched_word_stays_highlighted_until_it_is_touched_again(page):
    translate_example(page)
    bike = words(page, "target").nth(1)
    bike.tap()
    expect(bike).to_have_attribute("aria-pressed", "true")
    assert weights(page, "source") == pytest.approx([0.05, 0.9, 0.05])
    bike.tap()
    expect(bike).to_have_attribute("aria-pressed", "false")
    assert weights(page, "source") == [0, 0, 0]


def test_everything_works_with_the_keyboard(page):
    stub_translations(page, BEST, SECOND)
    expect(page.locator("#source")).to_be_focused()
    page.keyboard.type("das Rad")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#translation")).to_have_value("the bike")
    stops = []
    while "heatmap-region" not in stops and len(stops) < 20:
        page.keyboard.press("Tab")
        stop, outline = page.evaluate(
            "(at => [at.id || at.name || at.className, getComputedStyle(at).outlineStyle])"
            "(document.activeElement)"
        )
        stops.append(stop)
        assert outline != "none", f"{stop} does not show that it has the focus."
    # The alternatives are radio buttons and one stop, as is each line of words.
    assert stops[0] == "translate"
    assert stops[-5:] == ["hypothesis", "grouped", "word pointed", "word pointed", "heatmap-region"]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowRight")
    assert weights(page, "source") == pytest.approx([0.05, 0.9, 0.05])
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert weights(page, "source") == pytest.approx([0.05, 0.9, 0.05])  # Enter fixed it
    page.keyboard.press("Escape")
    assert weights(page, "source") == [0, 0, 0]


@pytest.mark.parametrize(
    ("text", "direction"),
    [("مرحبا بالعالم", "rtl"), ("नमस्ते", "ltr"), ("你好，世界", "ltr"), ("a 👩🏽‍🚀 on", "ltr")],
)
def test_every_script_is_shown_in_its_direction(page, text, direction):
    translate(page, text)
    for name in ("#translation", "#source-words", "#target-words"):
        element = page.locator(name)
        content = element.input_value() if name == "#translation" else element.text_content()
        assert content.removesuffix("\u00a0end") == text
        expect(element).to_have_attribute("dir", "auto")
        expect(element).to_have_css("direction", direction)
    expect(page.locator("#heatmap")).to_have_css("direction", direction)


def test_markup_in_a_text_stays_text(page):
    markup = "<img src=x onerror=alert(1)>"
    stub_models(page, **{markup: 99})
    expect(page.locator("#model-name")).to_have_text(markup)
    stub_response(page, "translate/stream", {"error": markup, "code": "invalid"}, 400)
    page.fill("#source", markup)
    page.click("#translate")
    expect(page.locator("#error")).to_contain_text(markup)
    hostile = hypothesis(markup, -1, [markup] * 4, WEIGHTS, [markup] * 4)
    stub_response(page, "translate/stream", f"data: {json.dumps({'text': markup})}\n\n")
    stub_response(page, "translate", {"translations": [[hostile, hostile]]})
    translate(page, markup)
    page.uncheck("#grouped")
    words(page, "target").nth(0).hover()
    expect(page.locator("#translation")).to_have_value(markup)
    expect(page.locator("img")).to_have_count(0)


ERRORS = [
    (429, {"Retry-After": "7"}, "", "The server is busy. Try again in 7 seconds."),
    (413, {}, "", "The text is too long for this model."),
    (503, {}, "", "The server is starting or shutting down"),
    (504, {}, "<html>", "The translation took too long"),
    (404, {}, "", "This model is no longer on the server."),
    (500, {}, '{"error": "no", "code": "internal"}', "Something went wrong on the server."),
    (422, {}, '{"error": "no", "code": "unprocessable"}', "The server refused the request: no"),
    (200, {}, 'data: {"error": "no", "code": "overloaded"}\r\n\r\n', "The server is busy."),
    (200, {}, 'data: {"delta": "a"}\n\n', "The connection was lost"),
    (200, {}, "data: {\n\n", "The response is invalid"),
]


def test_each_error_has_a_message(page):
    page.fill("#source", TEXT)
    for status, headers, body, sentence in ERRORS:
        stub_response(page, "translate/stream", body, status, **headers)
        page.keyboard.press("Control+Enter")
        page.locator("#stop").wait_for(state="hidden")
        expect(page.locator("#error")).to_contain_text(sentence)
    page.unroute_all()
    translate(page)
    expect(page.locator("#error")).to_be_hidden()


def test_a_request_to_an_unreachable_server_can_be_repeated(page):
    page.route("**/translate/stream", lambda route: route.abort())
    page.fill("#source", TEXT)
    page.click("#translate")
    expect(page.locator("#error")).to_contain_text("The server cannot be reached.")
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#translation")).to_have_value(TEXT)
    expect(page.locator("#results")).to_be_visible()


def test_a_text_that_is_blank_or_above_the_limit_is_not_sent(page):
    stub_models(page, m=4)
    page.click("#translate")
    expect(page.locator("#status")).to_have_text("Type a sentence first.")
    page.fill("#source", "👋👋👋👋")
    expect(page.locator("#counter")).to_have_text("4 of 4 characters")
    page.fill("#source", TEXT)
    page.click("#translate")
    expect(page.locator("#error")).to_contain_text("The limit is 4 characters.")
    assert not any("translate" in url for url in page.addresses)


def assert_nothing_is_shown(page):
    """Check that nothing of an earlier translation is left."""
    expect(page.locator("#translation")).to_have_value("")
    for name in ("#results", "#words", "#copy"):
        expect(page.locator(name)).to_be_hidden()
    expect(page.locator("#spoken")).to_have_text("")
    expect(page.locator("#hypotheses li")).to_have_count(0)


@pytest.mark.parametrize("streams", [True, False])
def test_no_translation_of_another_text_is_shown_after_an_error(page, streams):
    stub_models(page, streams, m=40)
    for text, body, sentence in (
        ("x" * 41, None, "The limit is 40 characters."),
        (TEXT, {"error": "half of a character", "code": "invalid"}, "half of a character"),
    ):
        translate_example(page)
        page.fill("#source", text)
        if body:
            stub_response(page, "translate/stream", body, 400)
            stub_response(page, "translate", body, 400)
        page.click("#translate")
        expect(page.locator("#error")).to_contain_text(sentence)
        assert_nothing_is_shown(page)


def test_no_translation_of_another_text_is_shown_after_a_stop(page):
    stub_models(page, streams=False, m=40)
    translate_example(page)
    page.route("**/translate", lambda route: None)  # it never answers
    page.fill("#source", TEXT)
    page.click("#translate")
    page.click("#stop")
    expect(page.locator("#status")).to_have_text("Stopped.")
    assert_nothing_is_shown(page)


def test_blank_text_has_no_translation(page):
    translate_example(page)
    page.fill("#source", " ")
    assert_nothing_is_shown(page)
    page.fill("#source", TEXT)
    page.route("**/translate/stream", lambda route: None)  # it never answers
    page.click("#translate")
    with page.expect_event("requestfailed"):  # the request is aborted
        page.fill("#source", "")
    expect(page.locator("#stop")).to_be_hidden()
    assert_nothing_is_shown(page)


def test_typed_beginning_remains_after_an_error(page):
    select_options_model(page)
    stub_response(page, "translate", {"error": "no", "code": "invalid"}, 400)
    box = page.get_by_role("textbox", name="Translation")
    box.fill("a dog")
    expect(page.locator("#error")).to_contain_text("no")
    expect(box).to_have_value("a dog")
    expect(page.locator("#results")).to_be_hidden()


def test_refused_copy_selects_the_translation(page):
    translate_example(page)
    refuse = "async () => { throw new DOMException('no'); }"
    page.evaluate(f"() => {{ navigator.clipboard.writeText = {refuse}; }}")
    page.click("#copy")
    expect(page.locator("#status")).to_contain_text("does not allow copying")
    assert translation(page) == ["the bike", "the bike"]


def test_a_key_is_requested_stored_and_sent(page):
    def check_key(route):
        if route.request.headers.get("authorization") == "Bearer right":
            return route.continue_()
        return route.fulfill(status=401, json={"code": "unauthenticated"})

    page.route(re.compile("/(models|translate)"), check_key)
    page.reload()
    for key, sentence in (("wrong", "requires an API key"), ("right", "does not accept this")):
        expect(page.locator("#error")).to_contain_text(sentence)
        page.get_by_label("API key").fill(key)
        page.keyboard.press("Enter")
    expect(page.locator("#error")).to_be_hidden()
    translate(page)
    page.reload()
    translate(page)
    assert page.evaluate("[sessionStorage.getItem('api-key'), localStorage.length]") == ["right", 0]


def test_stop_and_a_new_request_abort_the_running_one(page):
    page.route("**/translate/stream", lambda route: None)  # it never answers
    page.fill("#source", TEXT)
    for name, status in (("#translate", "Translating…"), ("#stop", "Stopped.")):
        with page.expect_request("**/translate/stream"):
            page.click("#translate")
        with page.expect_event("requestfailed") as failed:
            page.click(name)
        assert failed.value.failure == "net::ERR_ABORTED"
        expect(page.locator("#status")).to_have_text(status)
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator("#translate")).to_be_focused()


def test_model_without_steps_or_alignments_shows_its_result(page):
    stub_models(page, m=99, streams=False)
    stub_response(page, "translate", {"translations": [{**BEST, "alignment": None}]})
    translate(page)
    expect(page.locator("#translation")).to_have_value("the bike")
    expect(page.locator("#alignment")).to_be_hidden()
    assert not any("stream" in url for url in page.addresses)


def test_model_is_chosen_among_several(page):
    stub_models(page, large=5000, small=200)
    stub_translations(page, BEST, SECOND)
    page.get_by_label("Model").select_option("small")
    expect(page.locator("#counter")).to_have_text("0 of 200 characters")
    with page.expect_request("**/translate") as sent:
        translate(page)
    body = {"text": TEXT, "model": "small", "n_best": 4, "alignments": True}
    assert sent.value.post_data_json == body


def test_theme_follows_the_system_until_one_is_chosen(page):
    theme = page.get_by_role("button", name="Dark theme")
    light = background(page)
    page.emulate_media(color_scheme="dark")
    dark = background(page)
    assert dark != light
    expect(theme).to_have_attribute("aria-pressed", "true")
    theme.click()
    expect(theme).to_have_attribute("aria-pressed", "false")
    assert background(page) == light
    page.reload()
    assert background(page) == light
    theme.click()
    assert background(page) == dark


def test_narrow_screen_never_scrolls_sideways(page):
    page.set_viewport_size({"width": 320, "height": 640})
    tokens = ["a" * 300, *[" bike"] * 18, "</s>"]
    row = hypothesis("a" * 300, -1, tokens, [[0.05] * 20] * 20, tokens)
    stub_translations(page, row, row)
    translate(page, "a" * 300)
    words(page, "target").nth(0).hover()
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    stub_response(page, "translate/stream", {"error": "no" * 200, "code": "invalid"}, 400)
    page.click("#translate")
    expect(page.locator("#error")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 320


def test_elements_have_names_and_roles_for_screen_readers(page):
    translate_example(page)
    expect(page.get_by_role("textbox", name="Text")).to_be_visible()
    expect(page.get_by_role("textbox", name="Translation")).to_have_value("the bike")
    expect(page.locator("#spoken")).to_have_attribute("aria-live", "polite")
    expect(page.locator("#spoken")).to_have_text("the bike")
    expect(page.locator("#error")).to_have_attribute("role", "alert")
    expect(page.get_by_role("group", name="Alternatives")).to_be_visible()
    expect(page.get_by_role("button", name="end of sentence")).to_have_count(2)
    table = page.get_by_role("table", name="Attention of each word")
    expect(table.get_by_role("columnheader", name="Rad")).to_have_count(1)
    expect(table.get_by_role("rowheader", name="bike")).to_have_count(1)


def select_options_model(page):
    """Select the model whose search has options, and translate with it."""
    page.get_by_label("Model").select_option("options")
    translate(page)


def translation(page):
    """Return the translation, and the part of it that is selected."""
    return page.eval_on_selector(
        "#translation",
        "box => [box.value, box.value.slice(box.selectionStart, box.selectionEnd)]",
    )


def words_at(page, *words):
    """Return these words, (text, probability), from `/alternatives`."""
    alternatives = [{"text": text, "probability": value} for text, value in words]
    stub_response(page, "alternatives", {"alternatives": alternatives})


def click_word(page, position):
    """Click the translation with the cursor at a position."""
    page.eval_on_selector(
        "#translation",
        """(box, position) => {
            box.focus();
            box.setSelectionRange(position, position);
            box.dispatchEvent(new MouseEvent("click", {bubbles: true}));
        }""",
        position,
    )


def test_a_typed_beginning_is_completed_and_the_rest_is_selected(page):
    select_options_model(page)
    box = page.get_by_role("textbox", name="Translation")
    expect(box).to_have_accessible_description(re.compile("is completed while you type"))
    box.fill("")
    with page.expect_request("**/translate") as sent:
        box.press_sequentially("a dog")
    assert sent.value.post_data_json["prefix"] == "a dog"
    expect(box).to_have_value("a dog on a bike")
    expect(page.locator("#status")).to_have_text(re.compile("Translated in"))
    assert translation(page) == ["a dog on a bike", " on a bike"]
    expect(words(page, "target")).to_have_text(["a", "dog", "on", "a", "bike", "end"])
    with page.expect_request("**/translate") as sent:
        page.keyboard.type(" on")  # replaces the completion
    assert sent.value.post_data_json["prefix"] == "a dog on"
    expect(page.locator("#status")).to_have_text(re.compile("Translated in"))
    assert translation(page) == ["a dog on a bike", " a bike"]
    page.keyboard.press("Enter")  # accepts the completion
    assert translation(page) == ["a dog on a bike", ""]
    assert not page.problems


def test_what_is_deleted_is_completed_only_on_request(page):
    select_options_model(page)
    box = page.get_by_role("textbox", name="Translation")
    box.press("End")
    page.evaluate(
        """() => {
            const original = window.setTimeout;
            window.pauses = 0;
            window.setTimeout = (task, delay) => {
                window.pauses += delay === PAUSE;
                return original(task, delay);
            };
        }"""
    )
    for _ in range(len(" bike")):
        page.keyboard.press("Backspace")
    assert translation(page) == ["a man on a", ""] and page.evaluate("window.pauses") == 0
    page.keyboard.press("Control+Enter")
    expect(box).to_have_value(TEXT)
    expect(page.locator("#status")).to_have_text(re.compile("Translated in"))
    assert translation(page) == [TEXT, " bike"]


def test_a_new_key_aborts_the_completion(page):
    select_options_model(page)
    page.route("**/translate", lambda route: None)  # it never answers
    box = page.get_by_role("textbox", name="Translation")
    box.fill("")
    with page.expect_request("**/translate"):
        box.press_sequentially("a")
    with page.expect_event("requestfailed") as failed:
        page.keyboard.type(" ")
    assert failed.value.failure == "net::ERR_ABORTED"
    page.unroute_all()
    page.keyboard.type("dog")
    expect(box).to_have_value("a dog on a bike")


def test_a_clicked_word_shows_probable_words_and_the_translation_continues(page):
    select_options_model(page)
    words_at(page, ("man", 0.75), ("dog", 0.2), ("", 0.04), ("<b>", 0.004))
    with page.expect_request("**/alternatives") as sent:
        click_word(page, 4)
    body = {"text": TEXT, "model": "options", "prefix": "a ", "count": 7}
    assert sent.value.post_data_json == body
    group = page.get_by_role("group", name="Instead of “man”")
    expect(group.get_by_role("button")).to_have_text(["man 75%", "dog 20%", "<b> <1%"])
    expect(group.get_by_role("button", name="man")).to_have_attribute("aria-current", "true")
    expect(page.locator("#status")).to_have_text("3 words for “man”")
    with page.expect_request("**/translate") as sent:
        group.get_by_role("button", name="dog").click()
    assert sent.value.post_data_json["prefix"] == "a dog"
    expect(page.locator("#translation")).to_have_value("a dog on a bike")
    expect(group).to_be_hidden()


def test_words_are_chosen_with_the_keyboard(page):
    select_options_model(page)
    words_at(page, ("man", 0.75), ("dog", 0.2), ("boat", 0.01))
    box = page.get_by_role("textbox", name="Translation")
    box.focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Alt+ArrowDown")
    expect(page.get_by_role("button", name="man 75%")).to_be_focused()
    for key, name in (("End", "boat"), ("ArrowUp", "dog"), ("Home", "man"), ("ArrowRight", "dog")):
        page.keyboard.press(key)
        expect(page.locator("#word-list").get_by_role("button", name=name)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#words")).to_be_hidden()
    expect(box).to_be_focused()
    page.keyboard.press("Alt+ArrowDown")
    expect(page.get_by_role("button", name="man 75%")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(box).to_have_value("a dog on a bike")
    expect(box).to_be_focused()


def test_probable_words_are_those_of_the_step_graph(page):
    select_options_model(page)
    click_word(page, 4)
    # The graph gives the next token of the source the log-probability 0.
    expect(page.locator("#word-list button").first).to_have_text("man 100%")


def test_settings_are_sent_if_they_are_changed(page):
    select_options_model(page)
    page.locator("#settings summary").click()
    size, penalty = page.get_by_label("Beam size"), page.get_by_label("Length penalty")
    expect(size).to_have_value("2")
    expect(size).to_have_attribute("max", "2")
    size.fill("1")
    with page.expect_request("**/translate") as sent:
        size.press("Tab")
    body = {"text": TEXT, "model": "options", "n_best": 1, "alignments": True, "beam_size": 1}
    assert sent.value.post_data_json == body
    penalty.fill("0.5")
    with page.expect_request("**/translate") as sent:
        penalty.press("Tab")
    assert sent.value.post_data_json == {**body, "length_penalty": 0.5}
    with page.expect_request("**/translate") as sent:
        page.get_by_role("button", name="Reset").click()
    assert "beam_size" not in sent.value.post_data_json
    expect(page.locator("#status")).to_have_text(re.compile("Translated in"))
    size.fill("3")
    before = len(page.addresses)
    page.click("#translate")
    assert size.evaluate("field => field.validity.rangeOverflow")
    assert page.addresses[before:] == []


def test_a_model_without_options_has_no_interactive_elements(page):
    translate(page)
    expect(page.get_by_role("textbox", name="Translation")).not_to_be_editable()
    assert page.locator("#translation").get_attribute("aria-describedby") is None
    click_word(page, 4)
    for name in ("#settings", "#words", "#help"):
        expect(page.locator(name)).to_be_hidden()
    assert not any("alternatives" in url for url in page.addresses)


# --- Confidences ----------------------------------------------------------------------------------

DOUBTFUL = {
    **BEST,
    "confidence": 0.38,
    "expected_errors": 0.2,
    "token_confidences": [0.9, 0.4, 0.95, 0.3],
    "uncalibrated": None,
}


def test_tokens_are_shaded_by_doubt_and_the_most_doubtful_is_underlined(page):
    stub_translations(page, DOUBTFUL, SECOND)
    translate(page, "das Rad")
    shown = page.locator("#confidence")
    expect(shown).to_contain_text("38% confident, 20% of the symbols are expected to be wrong")
    tokens = shown.locator(".token")
    doubts = tokens.evaluate_all(
        "all => all.map(each => Number(each.style.cssText.split(':')[1].replace(';', '')))"
    )
    # The end of the sentence is not shown.
    assert doubts == pytest.approx([0.1, 0.6, 0.05])
    expect(shown.locator("button")).to_have_text(DOUBTFUL["tokens"][1])


def test_the_doubtful_token_leads_to_the_other_translations(page):
    stub_translations(page, DOUBTFUL, SECOND)
    translate(page, "das Rad")
    page.locator("#confidence button").click()
    expect(page.locator("#hypotheses input").nth(1)).to_be_focused()


def test_no_token_of_a_confident_translation_is_underlined(page):
    stub_translations(page, {**DOUBTFUL, "confidence": 0.995})
    translate(page, "das Rad")
    expect(page.locator("#confidence")).to_contain_text("more than 99% confident")
    expect(page.locator("#confidence button")).to_have_count(0)


def test_the_reason_for_no_confidence_is_shown(page):
    reason = "The confidence holds for beam_size=5. Received: 2."
    stub_translations(page, {**BEST, "confidence": None, "uncalibrated": reason})
    translate(page, "das Rad")
    expect(page.locator("#confidence")).to_have_text(reason)


def test_a_translation_without_a_calibration_shows_no_confidence(page):
    stub_translations(page, DOUBTFUL)
    translate(page, "das Rad")
    expect(page.locator("#confidence")).to_be_visible()
    translate_example(page)
    expect(page.locator("#confidence")).to_be_hidden()
