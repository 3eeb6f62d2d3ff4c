// Open a site in a browser, translate texts and encode lines; used by bench_site.py.
//
//     node drive_site.mjs BROWSER EXECUTABLE ADDRESS WORK.json NODE_MODULES
//
// Prints JSON: seconds from opening the page to the first translation of each visit, the tokens and
// milliseconds of each text, the ids of each line, and the messages in the console.

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { setTimeout } from "node:timers/promises";

const [name, executablePath, address, work, packages] = process.argv.slice(2);
const puppeteer = createRequire(resolve(packages, "index.js"))("puppeteer-core");
const { texts, lines } = JSON.parse(await readFile(work, "utf-8"));
const VISITS = 8;

const browser = await puppeteer.launch({ browser: name, executablePath, headless: true, args: name === "chrome" ? ["--no-sandbox"] : [] });
const page = await browser.newPage();
const problems = [];
page.on("console", (message) => problems.push(message.text()));
page.on("pageerror", (error) => problems.push(error.message));

const opened = [];
for (let visit = 0; visit < VISITS; visit++) {
  const started = performance.now();
  await page.goto(address);
  // Seconds since the page was opened, when the status says that the translation is complete.
  await page.evaluate(() => new Promise((done) => {
    const status = document.getElementById("status");
    const check = () => status.textContent.startsWith("Translated in") && done();
    new MutationObserver(check).observe(status, { childList: true, characterData: true, subtree: true });
    check();
  }));
  opened.push((performance.now() - started) / 1000);
  await setTimeout(3000); // until the files for offline use and the compiled code are stored
}

const { tokens, milliseconds } = await page.evaluate(async (texts) => {
  const tokens = [], milliseconds = [];
  for (const text of texts) {
    const started = performance.now();
    const [best] = await client.translate({ text, model: "model", n_best: 5, alignments: true });
    milliseconds.push(performance.now() - started);
    tokens.push(best.tokens);
  }
  return { tokens, milliseconds };
}, texts);
const ids = await page.evaluate(async (lines) => {
  // The worker imports the tokenizer.
  const worker = await (await fetch(SITE.worker)).text();
  const [, script] = /import \{[^}]*Tokenizer[^}]*\} from "\.\/([^"]+)"/.exec(worker);
  const { Tokenizer } = await import(new URL(`files/${script}`, location.href));
  const { source } = new Tokenizer(await (await fetch(`files/${SITE.models[0].files.tokenizer.path}`)).json());
  return lines.map((line) => source.encode(line));
}, lines);
console.log(JSON.stringify({ version: await browser.version(), opened, tokens, milliseconds, ids, problems }));
await browser.close();
