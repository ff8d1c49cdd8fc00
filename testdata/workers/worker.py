"""A worker with the standard library alone: python3 worker.py URL USER PASSWORD

It hosts the tool word_count, in about 40 lines of NATS. With a client of NATS
there is less to write: see worker.mjs.
"""

import json, os, socket, sys
from urllib.parse import urlsplit

TOOL = {
    "description": "Count the words of a text.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "timeout_ms": 10_000,
}


def word_count(args, headers):
    return {"ok": True, "output": "%d words" % len(args["text"].split()), "structured": {"key": headers["Steno-Key"]}}


def main(url, user, password):
    at = urlsplit(url)
    sock = socket.create_connection((at.hostname, at.port))
    lines = sock.makefile("rb")
    name, ident = "words-in-python", "py%d" % os.getpid()
    endpoint = {"name": "word_count", "subject": "steno.tool.word_count", "queue_group": "q", "metadata": {"steno_tool": json.dumps(TOOL)}}
    service = {"name": name, "id": ident, "version": "1.0.0", "metadata": {}}

    def send(text, payload=b""):
        sock.sendall(text.encode() + b"\r\n" + payload)

    def publish(subject, value):
        body = json.dumps(value).encode()
        send("PUB %s %d" % (subject, len(body)), body + b"\r\n")

    lines.readline()  # INFO
    send("CONNECT " + json.dumps({"verbose": False, "headers": True, "user": user, "pass": password, "lang": "python", "version": "1"}))
    for sid, subject in enumerate(("$SRV.PING", "$SRV.INFO", "$SRV.INFO.%s.%s" % (name, ident), "steno.tool.word_count q")):
        send("SUB %s %d" % (subject, sid))
    send("PING")
    while line := lines.readline():
        verb, *words = line.decode().split()
        if verb == "PING":
            send("PONG")
        elif verb == "PONG":
            print("serving", flush=True)
        elif verb == "-ERR":
            sys.exit(line.decode())
        elif verb in ("MSG", "HMSG"):
            payload = lines.read(int(words[-1]) + 2)[:-2]
            head, body = (payload[: int(words[-2])], payload[int(words[-2]) :]) if verb == "HMSG" else (b"", payload)
            headers = dict(h.split(": ", 1) for h in head.decode().split("\r\n")[1:] if h)
            reply = words[2]
            if words[0].startswith("$SRV.PING"):
                publish(reply, {"type": "io.nats.micro.v1.ping_response", **service})
            elif words[0].startswith("$SRV.INFO"):
                publish(reply, {"type": "io.nats.micro.v1.info_response", "endpoints": [endpoint], **service})
            else:
                publish(reply, word_count(json.loads(body), headers))


main(*sys.argv[1:])
