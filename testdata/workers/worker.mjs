// A worker with the public client of NATS: node worker.mjs URL USER PASSWORD
//
// It hosts the tool word_count. Beside this file: npm ci
import { connect, headers } from "nats";

const tool = {
  description: "Count the words of a text.",
  inputSchema: { type: "object", properties: { text: { type: "string" } }, required: ["text"] },
  timeout_ms: 10_000,
};

async function wordCount(args, call, progress) {
  progress(`counting for ${call.get("Steno-Session")}`);
  return { ok: true, output: `${args.text.split(/\s+/).filter(Boolean).length} words`, structured: { key: call.get("Steno-Key") } };
}

const [servers, user, pass] = process.argv.slice(2);
const nc = await connect({ servers, user, pass, inboxPrefix: "_INBOX_WORKER" });
const service = await nc.services.add({ name: "words-in-node", version: "1.0.0" });
service.addEndpoint("word_count", {
  subject: "steno.tool.word_count",
  metadata: { steno_tool: JSON.stringify(tool) },
  handler: async (err, msg) => {
    if (err) return console.error(err.message);
    const live = headers();
    live.set("Steno-Progress", "1");
    let answer;
    try {
      answer = await wordCount(msg.json(), msg.headers, (text) => msg.respond(text, { headers: live }));
    } catch (e) {
      console.error(e); // the model is told no more than this
      answer = { ok: false, error: { kind: "tool_failed", message: "the words cannot be counted", details: {} } };
    }
    msg.respond(JSON.stringify(answer));
  },
});
await nc.flush();
console.log("serving");
process.once("SIGTERM", () => nc.drain());
await nc.closed();
