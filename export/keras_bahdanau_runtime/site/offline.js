// The service worker of the site: after the first translation, the site works offline. A new version
// of the site replaces all files at once, when no page of the old one is open. The browser compares
// each file with its hash, except the pages, whose hash is the version.

const VERSION = "/* version */";
const PAGES = ["./", "index.html"];
const FILES = {/* files */}; // hashes by path
const PREFIX = `keras-bahdanau ${self.registration.scope} `;

self.addEventListener("install", (event) => {
  const pages = PAGES.map((path) => new Request(path, { cache: "no-cache" }));
  const files = Object.entries(FILES).map(([path, integrity]) => new Request(path, { integrity }));
  event.waitUntil(caches.open(PREFIX + VERSION).then((cache) => cache.addAll([...pages, ...files])));
});

self.addEventListener("activate", (event) => {
  const isOld = (name) => name.startsWith(PREFIX) && name !== PREFIX + VERSION;
  const cleaned = caches.keys().then((names) => Promise.all(names.filter(isOld).map((name) => caches.delete(name))));
  event.waitUntil(cleaned.then(() => self.clients.claim()));
});

self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET") return;
  event.respondWith(findCached(event.request).catch(() => null).then((response) => response ?? fetch(event.request)));
});

/** Returns the stored response to a request. A browser may refuse its storage, then the site is online only. */
async function findCached(request) {
  const cache = await caches.open(PREFIX + VERSION);
  return cache.match(request, { ignoreSearch: true });
}
