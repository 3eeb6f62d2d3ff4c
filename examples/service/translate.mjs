// Call `keras-bahdanau serve artifact` from JavaScript, in Node.js or a browser, and stream the result.
//
//   node examples/service/translate.mjs "a man on a bike" [http://localhost:8000]

export async function* stream(url, text, model) {
  const response = await fetch(`${url}/translate/stream`, {
    method: "POST",
    body: JSON.stringify(model ? { text, model } : { text }),
  });
  if (!response.ok) throw new Error((await response.json()).error);
  let incomplete = "";
  for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
    const events = (incomplete + chunk).split("\n\n");
    incomplete = events.pop();
    for (const event of events) {
      const message = JSON.parse(event.slice("data: ".length));
      if (message.error) throw new Error(message.error);
      if (message.delta) yield message.delta;
    }
  }
}

if (globalThis.process?.argv[1]?.endsWith("translate.mjs")) {
  const [text, url = "http://localhost:8000"] = process.argv.slice(2);
  for await (const delta of stream(url, text)) process.stdout.write(delta);
  process.stdout.write("\n");
}
