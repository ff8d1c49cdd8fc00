// The same worker with nothing but node itself: node worker-plain.mjs URL USER PASSWORD
import net from "node:net";

const tool = {
  description: "Count the words of a text.",
  inputSchema: { type: "object", properties: { text: { type: "string" } }, required: ["text"] },
  timeout_ms: 10_000,
};

const wordCount = (args, call) => ({ ok: true, output: `${args.text.split(/\s+/).filter(Boolean).length} words`, structured: { key: call["Steno-Key"] } });

const [url, user, pass] = process.argv.slice(2);
const who = { name: "words-in-plain-node", id: `js${process.pid}`, version: "1.0.0", metadata: {} };
const endpoints = [{ name: "word_count", subject: "steno.tool.word_count", queue_group: "q", metadata: { steno_tool: JSON.stringify(tool) } }];
const subjects = ["$SRV.PING", "$SRV.INFO", `$SRV.INFO.${who.name}.${who.id}`, "steno.tool.word_count q"];

const sock = net.connect(Number(new URL(url).port), new URL(url).hostname);
const publish = (to, value) => {
  const body = Buffer.from(JSON.stringify(value));
  sock.write(Buffer.concat([Buffer.from(`PUB ${to} ${body.length}\r\n`), body, Buffer.from("\r\n")]));
};

function take(subject, reply, head, body) {
  const call = Object.fromEntries(head.toString().split("\r\n").slice(1).filter(Boolean).map((line) => line.split(/: (.*)/s)));
  if (subject.startsWith("$SRV.PING")) publish(reply, { type: "io.nats.micro.v1.ping_response", ...who });
  else if (subject.startsWith("$SRV.INFO")) publish(reply, { type: "io.nats.micro.v1.info_response", endpoints, ...who });
  else publish(reply, wordCount(JSON.parse(body.toString()), call));
}

let rest = Buffer.alloc(0);
sock.on("data", (chunk) => {
  rest = Buffer.concat([rest, chunk]);
  for (let end; (end = rest.indexOf("\r\n")) >= 0; ) {
    const [verb, ...words] = rest.subarray(0, end).toString().split(/\s+/);
    let next = end + 2;
    if (verb === "MSG" || verb === "HMSG") {
      const length = Number(words.at(-1)), head = verb === "HMSG" ? Number(words.at(-2)) : 0;
      if (rest.length < next + length + 2) return; // the rest is on its way
      take(words[0], words[2], rest.subarray(next, next + head), rest.subarray(next + head, next + length));
      next += length + 2;
    } else if (verb === "INFO") {
      sock.write(`CONNECT ${JSON.stringify({ verbose: false, headers: true, user, pass, lang: "node", version: "1" })}\r\n`);
      sock.write(subjects.map((subject, i) => `SUB ${subject} ${i}\r\n`).join("") + "PING\r\n");
    } else if (verb === "PING") sock.write("PONG\r\n");
    else if (verb === "PONG") console.log("serving");
    else if (verb === "-ERR") throw new Error(words.join(" "));
    rest = rest.subarray(next);
  }
});
sock.on("close", () => process.exit(0));
