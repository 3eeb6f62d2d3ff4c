"""The static site: what it refuses to write, and its translations in Chromium."""

import functools
import http.server
import json
import random
import re
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from copy_artifact import calibration, copy_graph, make, make_with_options
from pages import FILES

from keras_bahdanau_runtime import Tokenizer, Translator, UnsupportedArtifactError
from keras_bahdanau_runtime.calibration import OUTPUT_FEATURES
from keras_bahdanau_runtime.ids import EOS
from keras_bahdanau_runtime.search_options import encode_constraints
from keras_bahdanau_runtime.signature import SAMPLE
from keras_bahdanau_runtime.site import write_site

ONNXRUNTIME_WEB = Path(sys.prefix, "node_modules", "onnxruntime-web")  # of `make web`
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
ARTIFACT = FILES / "artifact"
OPTIONS = "options </script><b>"  # a name must not become markup
# Letters with and without accents, other scripts, digits, marks, joiners, spaces, emoji, controls.
SCRIPTS = (
    "aàǆ Ωжשع हिข์ あ漢가 0٣๙Ⅷ½ .,!«“- 🙂𝔘 'sd\u0301\u200d\u200c\u00a0\u3000\u0085\ufeff\t\n\x00\x1f"
)


@pytest.fixture(scope="module")
def learned():
    """The document of a tokenizer with 290 ids that this package has learned."""
    return Tokenizer.train(["a man on a bike, a man"], ["a man"], 290)._document()


@pytest.fixture(scope="module")
def sites(tmp_path_factory, learned):
    """Yield the folder of sites that a local server shows, and its address."""
    if not ONNXRUNTIME_WEB.is_dir():
        pytest.skip("Needs onnxruntime-web: make web")
    root = tmp_path_factory.mktemp("sites")
    search = {"class": "BeamSearch", "size": 2, "length_penalty": 1.0, "max_length": 40}
    options = make_with_options(root / "options", document=learned, search=search)
    calibrated = make_with_options(
        root / "calibrated", document=learned, search=search, calibration=every_feature(search)
    )
    artifacts = {"old": ARTIFACT, OPTIONS: options, "calibrated": calibrated}
    write_site(artifacts, root / "site", ONNXRUNTIME_WEB, examples=["red cat"], max_tokens=30)
    newer = make(root / "newer", copy_graph().replace('"" : 17', '"" : 99'), learned)
    write_site({"newer": newer}, root / "unsupported", ONNXRUNTIME_WEB)
    (root / "frame.html").write_text('<h1>Demo</h1><iframe src="site/" style="height: 9px">')
    handler = functools.partial(Handler, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield root, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def every_feature(search):
    """A calibration that reads every feature."""
    weights = {name: 0.1 * n for n, name in enumerate(OUTPUT_FEATURES, start=1)}
    models = {
        "confidence": {"bias": 0.4, "weights": weights},
        "expected_errors": {"bias": -1.0, "weights": {"mean": -0.5}},
        "tokens": {"bias": 0.2, "weights": {"token": 0.7, "output": 0.3}},
    }
    return calibration(search, **models)


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="The browser is driven by it.")
    if CHROMIUM is None:
        pytest.skip(f"No browser is installed: {', '.join(NAMES)}.")
    with sync_api.sync_playwright() as playwright:
        # Unlike an address of this machine, this name is not a secure context.
        arguments = ["--no-sandbox", "--host-resolver-rules=MAP insecure.test 127.0.0.1"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


def open_page(browser, address):
    """Open a page as a new visitor, and record its errors and the addresses of its requests."""
    page = browser.new_context().new_page()
    page.problems, page.addresses = [], []
    page.on("console", lambda message: page.problems.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.context.on("request", lambda request: page.addresses.append(request.url))
    page.goto(address)
    return page


@pytest.fixture(scope="module")
def page(sites, browser):
    """Yield the page of the site after its first translation."""
    address = sites[1]
    page = open_page(browser, f"{address}/site/")
    translated(page)
    yield page
    assert page.problems == []
    assert {url for url in page.addresses if not url.startswith((address, "data:"))} == set()
    page.context.close()


def translated(page):
    """Wait for a translation, and return it."""
    page.locator("#status", has_text=re.compile("^Translated in")).wait_for()
    return page.locator("#translation").input_value()


def client_translate(page, text, model="old", **options):
    """Return the hypotheses that the client of the page gets for a text."""
    body = {"text": text, "model": model, "n_best": 3, "alignments": True, **options}
    return page.evaluate("body => client.translate(body)", body)


def error_of(page):
    error = page.locator("#error")
    error.wait_for()
    return error.text_content()


def test_page_translates_the_example_at_once(page):
    assert page.locator("#source").input_value() == "red cat"
    [expected] = Translator(ARTIFACT).translate(["red cat"])
    assert page.locator("#translation").input_value() == expected.text


def test_browser_gives_the_hypotheses_of_the_translator(page):
    words = "red blue green one two three dog cat bird runs sees eats".split()
    chosen = random.Random(1)
    texts = [" ".join(chosen.choices(words, k=length)) for length in range(1, 8)]
    texts += ["Émile 漢字", "x" * 20]
    for text, expected in zip(texts, Translator(ARTIFACT).translate(texts, n_best=3), strict=True):
        received = client_translate(page, text)
        for ours, theirs in zip(received, expected, strict=True):
            assert ours["text"] == theirs.text
            assert ours["tokens"] == theirs.tokens
            assert ours["source_tokens"] == theirs.source_tokens
            assert ours["score"] == pytest.approx(theirs.score, abs=1e-4)
            np.testing.assert_allclose(ours["alignment"], theirs.alignment, atol=1e-4)


def test_browser_gives_the_confidences_of_the_translator(page, sites):
    texts = ["a", "red cat", "a man on a bike"]
    for text, expected in zip(
        texts, Translator(sites[0] / "calibrated").translate(texts), strict=True
    ):
        ours, *others = client_translate(page, text, "calibrated")
        for name in ("confidence", "expected_errors", "token_confidences"):
            np.testing.assert_allclose(ours[name], getattr(expected, name), rtol=1e-5)
        assert ours["uncalibrated"] is None and "confidence" not in others[0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"beam_size": 1}, "The confidence holds for beam_size=2. Received: 1."),
        ({"prefix": "a"}, "The confidence holds for translations without a given beginning."),
    ],
    ids=str,
)
def test_another_search_in_the_browser_has_a_reason_instead(page, options, reason):
    best = client_translate(page, "a man", "calibrated", **options)[0]
    assert best["confidence"] is None and best["uncalibrated"] == reason


def test_typing_translates_after_a_pause(page):
    page.fill("#source", "blue bird")
    [expected] = Translator(ARTIFACT).translate(["blue bird"])
    page.locator("#source-words", has_text="blue bird").wait_for()
    assert translated(page) == expected.text


def test_text_that_is_deleted_at_once_is_not_translated(page):
    page.fill("#source", "blue bird sees")
    page.fill("#source", "")
    page.fill("#source", " ")
    # A later timer of the same length ends after that of the deleted text.
    page.evaluate("() => new Promise((resolve) => setTimeout(resolve, client.typingPause))")
    assert "Type a sentence" not in page.locator("#status").text_content()


def test_settings_of_the_page_are_inputs_of_the_graph(page):
    [first] = client_translate(page, "a man", OPTIONS, length_penalty=3.0, n_best=1)
    count = len(first["source_tokens"])
    assert first["score"] == -3.0 * count  # see `options_graph`
    second = client_translate(page, "a man", OPTIONS, beam_size=1)[1]
    assert second["score"] == 1000


def test_translation_starts_with_its_given_beginning(page, sites):
    translator = Translator(sites[0] / "options")
    for prefix in ("b", "bi", None):
        [expected] = translator.translate(["a man on"], prefixes=[prefix])
        assert (
            client_translate(page, "a man on", OPTIONS, prefix=prefix)[0]["text"] == expected.text
        )


def test_beginning_above_the_output_limit_is_refused(page):
    refused = "body => client.translate(body).catch(error => error.message)"
    body = {"text": "a", "model": OPTIONS, "n_best": 1, "alignments": False, "prefix": "x" * 41}
    assert (
        page.evaluate(refused, body) == "Its given beginning is longer than a translation may be."
    )


def test_model_can_be_selected(page):
    page.select_option("#model", OPTIONS)
    page.fill("#source", "a man")
    page.locator("#source-words", has_text="a man").wait_for()
    assert translated(page) == "a man"
    page.select_option("#model", "old")


def test_text_of_unknown_characters_has_a_note(page):
    assert "note" not in client_translate(page, "red cat")[0]
    assert "few characters" in client_translate(page, "ⴰⴱⴳⴷ ⴰⵖ", OPTIONS)[0]["note"]


def test_text_above_the_limit_is_refused(page):
    page.fill("#source", "x" * 30)  # and the end of the sentence
    page.keyboard.press("Control+Enter")
    assert error_of(page).startswith("The text is too long for this model.")
    page.fill("#source", "red cat")
    page.locator("#error").wait_for(state="hidden")


def test_no_translation_of_another_text_is_shown(page):
    shown = "#results, #copy, #hypotheses li"
    for text, sentence in (("x" * 30, "too long"), ("", ""), ("\ud83d", "half of a character")):
        page.fill("#source", "red cat")
        page.locator("#source-words", has_text="red cat").wait_for()
        assert translated(page) and page.locator(shown).first.is_visible()
        page.evaluate(
            """(text) => {
                const box = document.getElementById("source");
                box.value = text;
                box.dispatchEvent(new Event("input"));
            }""",
            text,
        )
        if sentence:
            page.locator("#error", has_text=sentence).wait_for()
        assert page.locator("#translation").input_value() == ""
        assert not any(each.is_visible() for each in page.locator(shown).all())


def test_half_of_a_character_is_refused(page):
    refused = "body => client.translate(body).catch(error => error.message)"
    body = {"text": "\ud83d", "model": "old", "n_best": 1, "alignments": False}
    assert page.evaluate(refused, body) == "It contains half of a character."


@pytest.mark.parametrize("normalization", [None, "nfc", "nfkc", "nfd"])
@pytest.mark.parametrize("kind", ["bpe", "words", "characters", "symbols", "bytes"])
def test_tokenizer_gives_the_ids_and_texts_of_the_library(page, sites, kind, normalization):
    texts = random_texts()
    tokenizer = Tokenizer.train(
        texts[::2], texts[1::2], 400, joint=False, kind=kind, normalization=normalization
    )
    check_tokenizer_in_browser(page, sites, tokenizer, texts)


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_tokenizer_of_columns_gives_the_ids_of_the_library(page, sites, kind, joint):
    chosen = random.Random(4)
    tags = ["N;PL", "V PST", ";SG", "e\u0301", "", "N\tX"]
    texts = [f"{text}\t{chosen.choice(tags)}" for text in random_texts()]
    tokenizer = Tokenizer.train(
        texts[::2], texts[1::2], 400, joint, kind=kind, normalization="nfc", has_columns=True
    )
    check_tokenizer_in_browser(page, sites, tokenizer, [*texts, "a\tUNSEEN;PL", "\tN"])


@pytest.mark.parametrize(
    ("kind", "normalization", "joint"),
    [
        ("words", "nfc", True),
        ("words", "nfd", False),
        ("symbols", None, True),
        (("symbols", "words"), "nfd", False),
    ],
)
def test_copied_words_have_the_ids_and_texts_of_the_library(
    page, sites, kind, normalization, joint
):
    texts = random_texts()
    tokenizer = Tokenizer.train(
        *(texts[::2], texts[1::2], 300, joint),
        min_frequency=3,
        normalization=normalization,
        kind=kind,
        has_columns=True,
        copied_words=3,
    )
    chosen = random.Random(5)
    words = sorted({word for text in texts for word in text.split(" ")})
    sources = [" ".join(chosen.choices(words, k=6)) for _ in range(300)]
    targets = ["".join(chosen.sample(source, 5)) for source in sources[:50]]
    targets += [" ".join(chosen.choices(source.split(" "), k=3)) for source in sources[50:]]
    received = page.evaluate(
        """async ([script, document, pairs]) => {
            const { Tokenizer } = await import(script);
            const tokenizer = new Tokenizer(document);
            return pairs.map(([source, target]) => {
                const { ids, words } = tokenizer.encodeSource(source);
                const prefix = tokenizer.target.encodePrefix(target, words);
                prefix?.completions.sort(([p, i], [q, j]) => p - q || i - j);
                const forced = prefix && [prefix.ids, prefix.completions];
                const first = tokenizer.target.pieces.length;
                const output = tokenizer.target.tokens([first + 2, first, 5, 3], words);
                return [ids, words, tokenizer.source.tokens(ids, words), output, forced];
            });
        }""",
        [script_of(sites), tokenizer._document(), [*zip(sources, targets, strict=True)]],
    )
    expected, first = [], tokenizer.target_vocabulary_size - 3
    for source, target in zip(sources, targets, strict=True):
        try:
            prefix = encode_constraints(tokenizer.for_source(source), target)
            forced = [list(prefix.prefix), sorted(map(list, prefix.completions))]
        except ValueError:
            forced = None
        output = tokenizer.target_tokens([first + 2, first, 5, EOS], source)
        ids, words = tokenizer.encode_source(source), tokenizer.numbered_words(source)
        expected.append([ids, words, tokenizer.source_tokens(source), output, forced])
    assert received == expected


SENTENCEPIECE = FILES / "sentencepiece"
SENTENCES = json.loads((SENTENCEPIECE / "expected.json").read_text("utf-8"))


@pytest.mark.parametrize("model", SENTENCES)
def test_sentencepiece_in_the_browser_gives_the_ids_of_the_library(page, sites, model):
    """Unigram with and without pieces of several words, BPE with bytes, and rules of characters."""
    texts = [*random_texts(), *(text for text, *_ in SENTENCES[model]["texts"])]
    check_tokenizer_in_browser(page, sites, Tokenizer.load(SENTENCEPIECE / f"{model}.model"), texts)


def test_files_of_toolkits_in_the_browser_give_the_ids_of_the_library(page, sites, tmp_path):
    """Pieces that the vocabulary lacks are unknown or split, and others are only decoded."""
    merges = ["#version: 0.2", "a n</w>", "m an</w>", "b a", "ba l", "bal l</w>", "F u", "Fu ß"]
    (tmp_path / "codes").write_text("\n".join(merges), encoding="utf-8")
    pieces = ["ball", "Fuß@@", "man", "x@@", "b@@", "a@@", "ist", "é@@", "<unk>", "_ _"]
    texts = [*random_texts(), "Fußball man", " xman  bal", "Fußb", "é éa ist ba", "Fuß ball "]
    texts += [text for text, *_ in SENTENCES["bpe"]["texts"]]
    for model, vocabulary in (("unigram", ["never", "A"]), ("bpe", ["▁dogs!"]), ("codes", pieces)):
        path = tmp_path / "codes"
        if model != "codes":
            path = SENTENCEPIECE / f"{model}.model"
            loaded = Tokenizer.load(path).source
            names = [loaded.id_to_token(index) for index in range(4, loaded.get_vocab_size(), 2)]
            vocabulary = [*vocabulary, *(name for name in reversed(names) if " " not in name)]
        for splits_missing in (False, True):
            tokenizer = Tokenizer.from_toolkit(path, vocabulary, splits_missing)
            check_tokenizer_in_browser(page, sites, tokenizer, texts)


def random_texts():
    chosen = random.Random(3)
    texts = ["".join(chosen.choices(SCRIPTS, k=chosen.randint(1, 12))) for _ in range(400)]
    return [*texts, "", " ", "don't, I'll  go", "<s> </s>", "aaaaaaa aaaa", "0123 ٣٣"]


def script_of(sites):
    """Return the address of the script of the tokenizer."""
    files = (sites[0] / "site" / "files").glob("*.js")
    [script] = [file.name for file in files if "class Tokenizer" in file.read_text("utf-8")]
    return f"{sites[1]}/site/files/{script}"


def check_tokenizer_in_browser(page, sites, tokenizer, texts):
    received = page.evaluate(
        """async ([script, document, texts]) => {
            const { Tokenizer } = await import(script);
            const { source, target } = new Tokenizer(document);
            return texts.map((text) => {
                const ids = target.encode(text);
                const prefix = target.encodePrefix(text);
                prefix?.completions.sort(([p, i], [q, j]) => p - q || i - j);
                const tokens = target.tokens([...ids, 99999]);
                const forced = prefix && [prefix.ids, prefix.completions];
                const sources = source.encode(text);
                return [sources, source.tokens(sources), ids, tokens, forced];
            });
        }""",
        [script_of(sites), tokenizer._document(), texts],
    )
    expected = []
    for text in texts:
        ids = tokenizer.encode_target(text)
        tokens = tokenizer.target_decoder().tokens([*ids, 99999])
        try:
            prefix = encode_constraints(tokenizer, text)
            forced = [list(prefix.prefix), sorted(map(list, prefix.completions))]
        except ValueError:
            forced = None
        sources = tokenizer.encode_source(text), tokenizer.source_tokens(text)
        expected.append([*sources, ids, tokens, forced])
    assert received == expected


def test_site_works_offline_after_the_first_translation(sites, browser):
    page = open_page(browser, f"{sites[1]}/site/")
    translated(page)
    if len(page.workers) == 1:
        page.wait_for_event("worker")  # when all files are stored, it compiles for the next visit
    page.context.set_offline(True)
    page.reload()
    assert translated(page) != ""
    assert page.problems == []
    page.context.close()


def test_frame_downloads_nothing_until_it_is_used_and_fits_its_contents(sites, browser):
    page = open_page(browser, f"{sites[1]}/frame.html")
    frame = page.frame_locator("iframe")
    frame.locator("#examples button").wait_for()
    assert not frame.locator("header").is_visible()
    assert [url for url in page.addresses if "/files/" in url] == []
    frame.locator("#source").click()
    frame.locator("#alignment").wait_for()
    page.wait_for_function(
        """() => {
            const frame = document.querySelector("iframe");
            return frame.clientHeight === frame.contentDocument.body.scrollHeight;
        }"""
    )
    page.context.close()


def test_download_can_be_repeated(sites, browser):
    page = browser.new_context().new_page()
    page.context.route("**/*.onnx", lambda route: route.abort())
    page.goto(f"{sites[1]}/site/")
    page.locator("#error button").wait_for()
    page.context.unroute_all()
    page.click("#error button")
    assert translated(page)
    page.context.close()


@pytest.mark.parametrize(
    "stub, expected",
    [
        ({"body": b"changed"}, "is damaged"),
        ({"status": 404}, "is missing on this web server"),
        (None, "could not be downloaded"),
    ],
    ids=["changed", "missing", "unreachable"],
)
def test_failed_download_has_a_message(sites, browser, stub, expected):
    page = browser.new_context().new_page()
    page.context.route(
        "**/*.onnx", lambda route: route.abort() if stub is None else route.fulfill(**stub)
    )
    page.goto(f"{sites[1]}/site/")
    assert expected in error_of(page)
    page.context.close()


def test_page_without_https_translates_and_compares_hashes(sites, browser):
    address = sites[1].replace("127.0.0.1", "insecure.test")
    page = open_page(browser, f"{address}/site/")
    assert not page.evaluate("isSecureContext")
    translated(page)
    page.context.route("**/*.onnx", lambda route: route.fulfill(body=b"changed"))
    page.reload()
    assert "could not be downloaded" in error_of(page)
    page.context.close()


def test_browser_without_simd_is_told_which_browsers_have_it(sites, browser):
    context = browser.new_context()
    context.add_init_script("WebAssembly.validate = () => false")
    page = context.new_page()
    page.goto(f"{sites[1]}/site/")
    assert "WebAssembly with SIMD. Use Chrome" in error_of(page)
    context.close()


REFUSED = [
    ("Object.defineProperty(Navigator.prototype, 'serviceWorker', {GET})", None),
    ("Object.defineProperty(window, 'localStorage', {GET})", None),
    ("window.Worker = class { constructor() { throw new DOMException('x'); } }", "in a sandbox"),
    ("delete window.WebAssembly", "WebAssembly with SIMD. Use Chrome"),
    ("WebAssembly.validate = () => { throw new DOMException('x'); }", "with SIMD"),
]


@pytest.mark.parametrize(("script", "sentence"), REFUSED)
def test_feature_that_the_browser_refuses_does_not_stop_the_page(sites, browser, script, sentence):
    context = browser.new_context()
    context.add_init_script(script.replace("GET", "get() { throw new DOMException('x'); }"))
    page = context.new_page()
    page.goto(f"{sites[1]}/site/")
    assert sentence in error_of(page) if sentence else translated(page)
    context.close()


def test_sandboxed_frame_has_a_message(sites, browser):
    root, address = sites
    (root / "sandbox.html").write_text('<iframe sandbox="allow-scripts" src="site/"></iframe>')
    page = open_page(browser, f"{address}/sandbox.html")
    frame = page.frame_locator("iframe")
    frame.locator("#examples button").click()
    frame.locator("#error", has_text="in a sandbox").wait_for()
    page.context.close()


def test_site_without_storage_is_read_from_the_server(sites, browser):
    root, address = sites
    shutil.copytree(root / "site", root / "refusing")
    with (root / "refusing" / "offline.js").open("a") as script:
        script.write(
            "self.addEventListener('activate', () => {"
            " caches.open = async () => { throw new DOMException('x'); }; });"
        )
    page = open_page(browser, f"{address}/refusing/")
    translated(page)
    page.evaluate(
        """() => new Promise((resolve) => {
            const workers = navigator.serviceWorker;
            if (workers.controller) resolve();
            workers.addEventListener("controllerchange", () => resolve());
        })"""
    )
    page.reload()
    assert translated(page)
    page.context.close()


def test_graph_that_the_browser_refuses_has_a_message(sites, browser):
    page = open_page(browser, f"{sites[1]}/unsupported/")
    page.fill("#source", "a man")
    assert error_of(page) == "This browser cannot run the search of this model."
    page.context.close()


# Errors before anything is written.


def refusal(artifact, path, **settings):
    with pytest.raises((ValueError, UnsupportedArtifactError)) as refused:
        write_site({"model": artifact}, path, path / "no onnxruntime", **settings)
    assert not path.exists()
    return refused.value


def test_artifact_of_another_tokenizer_is_refused(tmp_path):
    artifact = make(tmp_path / "artifact")  # its tokenizer splits words in another way
    error = refusal(artifact, tmp_path / "site")
    assert isinstance(error, UnsupportedArtifactError)
    assert "a site cannot run the tokenizer" in str(error)


def test_artifact_with_a_sentencepiece_model_is_accepted(tmp_path):
    document = Tokenizer.load(SENTENCEPIECE / "bpe.model")._document()
    size = len(document["source"]["model"]["vocab"])
    artifact = make(
        tmp_path / "artifact", document=document, vocabulary={"source": size, "target": size}
    )
    assert "folder of onnxruntime-web" in str(refusal(artifact, tmp_path / "site"))


def test_artifact_without_a_tokenizer_is_refused(tmp_path):
    artifact = make(tmp_path / "artifact", document=None)
    assert "must have artifacts with a tokenizer" in str(refusal(artifact, tmp_path / "site"))


def test_search_that_samples_is_refused(tmp_path, learned):
    signatures = {"model.onnx": SAMPLE.to_json()}
    search = {"class": "Sampling", "n": 2, "max_length": 4, "seed": 1}
    artifact = make(tmp_path / "artifact", document=learned, signatures=signatures, search=search)
    error = refusal(artifact, tmp_path / "site")
    assert isinstance(error, UnsupportedArtifactError)
    assert "the search samples" in str(error)


def test_other_onnxruntime_is_refused_with_the_command_that_installs_it(tmp_path):
    runtime = tmp_path / "onnxruntime-web"
    write = "npm install onnxruntime-web@"
    with pytest.raises(ValueError, match=f"{write}.*which has no file dist/ort.wasm"):
        write_site({"old": ARTIFACT}, tmp_path / "site", runtime)
    (runtime / "dist").mkdir(parents=True)
    (runtime / "dist" / "ort.wasm.bundle.min.mjs").write_text("changed")
    with pytest.raises(ValueError, match=f"{write}.*whose dist/ort.wasm.* has sha256"):
        write_site({"old": ARTIFACT}, tmp_path / "site", runtime)
    assert not (tmp_path / "site").exists()


def test_text_that_is_no_unicode_is_no_example(tmp_path):
    error = refusal(ARTIFACT, tmp_path / "site", examples=["\ud83d"])
    assert "Argument `examples`" in str(error)


def test_only_a_site_is_replaced(sites, tmp_path):
    write_site({"old": ARTIFACT}, tmp_path / "site", ONNXRUNTIME_WEB)
    with pytest.raises(ValueError, match="overwrite"):
        write_site({"old": ARTIFACT}, tmp_path / "site", ONNXRUNTIME_WEB)
    write_site({"new": ARTIFACT}, tmp_path / "site", ONNXRUNTIME_WEB, overwrite=True)
    assert '"name": "new"' in (tmp_path / "site" / "index.html").read_text("utf-8")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("notes")
    with pytest.raises(ValueError, match="a site"):
        write_site({"old": ARTIFACT}, tmp_path / "notes", ONNXRUNTIME_WEB, overwrite=True)
