"""The HTML page of alignments, opened in a browser. Tests of the service cover the shared code."""

import shutil

import pytest

from keras_bahdanau_runtime.pictures.page import alignment_page

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="The page is tested in a browser, driven by playwright."
)
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="No browser is installed.")

WEIGHTS = [[0.8, 0.1, 0.1, 0], [0.1, 0.6, 0.3, 0], [0, 0.2, 0.7, 0.1], [0, 0, 0, 1]]
BIKE = (WEIGHTS, ["das", " R", "ad", "</s>"], ["the", " bi", "ke", "</s>"])
HOSTILE = (
    [[1.0, 0.0], [0.0, 1.0]],
    ["<img src=x>", "</script>"],
    ["<!--", " /* alignment.js */"],
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "a.html"
    assert alignment_page([BIKE, HOSTILE], path) == path.read_text("utf-8")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.messages, tab.addresses = [], []
        tab.on("console", lambda message: tab.messages.append(message.text))
        tab.on("pageerror", lambda error: tab.messages.append(str(error)))
        tab.on("request", lambda request: tab.addresses.append(request.url))
        tab.goto(path.as_uri())
        yield tab
        browser.close()
    assert (tab.messages, tab.addresses) == ([], [path.as_uri()])


def test_first_sentence_is_shown_in_words(page):
    cells = page.locator("#heatmap td[data-target]")
    sync_api.expect(cells).to_have_text(["80", "20", "0", "5", "90", "5", "0", "0", "100"])
    page.locator("#target-words .word").nth(1).hover()
    detail = "“bike” came from “Rad” 90%, “das” 5%, end of sentence 5%"
    sync_api.expect(page.locator("#detail")).to_have_text(detail)


def test_markup_in_a_selected_sentence_is_shown_as_text(page):
    choices = page.locator("#sentences label")
    sync_api.expect(choices).to_have_text(["das Rad", "<img src=x></script>"])
    choices.nth(1).click()
    page.uncheck("#grouped")
    words = page.locator("#target-words .word")
    sync_api.expect(words).to_have_text(["<!--", "/* alignment.js */"])
    sync_api.expect(page.locator("img")).to_have_count(0)
    page.check("#grouped")
    choices.nth(0).click()


def test_missing_sentences_and_wrong_titles_are_refused():
    with pytest.raises(ValueError, match="`alignments` must hold an alignment"):
        alignment_page([])
    with pytest.raises(ValueError, match="`titles` must hold a line for each alignment, 1"):
        alignment_page([BIKE], titles=["a", "b"])
