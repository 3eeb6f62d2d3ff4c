// Calls `keras-bahdanau serve artifact` from JavaScript, in node or a browser, piece by piece.
//
//   node examples/service/translate.mjs "a man on a bike" [http://localhost:8000]

export async function* stream(url, text, model) {
  const answer = await fetch(`${url}/translate/stream`, {
    method: "POST",
    body: JSON.stringify(model ? { text, model } : { text }),
  });
  if (!answer.ok) throw new Error((await answer.json()).error);
  let rest = "";
  for await (const part of answer.body.pipeThrough(new TextDecoderStream())) {
    const events = (rest + part).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const said = JSON.parse(event.slice("data: ".length));
      if (said.error) throw new Error(said.error);
      if (said.delta) yield said.delta;
    }
  }
}

if (globalThis.process?.argv[1]?.endsWith("translate.mjs")) {
  const [text, url = "http://localhost:8000"] = process.argv.slice(2);
  for await (const piece of stream(url, text)) process.stdout.write(piece);
  process.stdout.write("\n");
}
