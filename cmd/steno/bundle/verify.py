#!/usr/bin/env python3
"""Checks this bundle without steno: sums, numbers, links, blobs, the lengths that seals give, and the head.
usage: python3 verify.py [HEAD], a head that was kept elsewhere; without it, that of the file head.
Exit 0: all that was checked is right. 1: something is not. 2: no judgement, which steno verify can give."""
import hashlib, json, os, re, sys
os.chdir(os.path.dirname(os.path.abspath(__file__)))
EVENT = re.compile(rb'\{"v":1,"session":"([\w-]+)","seq":(\d+),"epoch":(\d+),"id":"[0-7][0-9A-HJKMNP-TV-Z]{25}","ts":"[0-9T:.-]+Z",'
                   rb'"type":"([a-z][a-z0-9_.]*)","data":.+,"prev":"([0-9a-f]{64})","sum":"([0-9a-f]{64})"\}\n', re.A)
CLAIM = re.compile(rb'\{"v":1,"session":"([\w-]+)","epoch":(\d+),"ts":"[0-9T:.-]+Z","claim":\{.*\},"sum":"([0-9a-f]{64})"\}\n', re.A)
place, session = "", re.sub(r"\.bundle$", "", os.path.basename(os.getcwd()))
def end(code, text): print(text + (": " + place if place else "")); sys.exit(code)
def need(ok, text, code=1): ok or end(code, text)
def digest(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for b in iter(lambda: f.read(1 << 20), b""): h.update(b)
    return h.hexdigest()
def main():
    global place
    need(len(sys.argv) > 1 or os.path.exists("head"), "no head: this log was damaged when the bundle was made; report.md says where", 2)
    head = sys.argv[1] if len(sys.argv) > 1 else open("head").read().strip()
    if os.path.exists("head.note"): need("\nsession %s\nhead %s\n" % (session, head) in open("head.note").read(), "the head is not that of head.note")
    names = sorted((n for n in os.listdir(session) if re.fullmatch(r"\d{6,}\.jsonl", n)), key=lambda n: int(n[:-6]))
    need(names, "no segments")
    seq, last, found, behind = 0, "0" * 64, False, 0
    for i, name in enumerate(names):
        path, epoch, at = os.path.join(session, name), int(name[:-6]), 0
        size = length = os.path.getsize(path)
        if i + 1 < len(names):
            with open(os.path.join(session, names[i + 1]), "rb") as f: f.readline(); pin = json.loads(f.readline())["data"].get("previous") or {}
            place = names[i + 1] + " line 2"
            need(pin.get("epoch") == epoch, "the seal does not name the segment before", 2)
            need(pin["size"] <= size, "the segment before is shorter than the seal says"), need(pin["size"] == size, "the segment before goes on behind its end", 2)
            length = pin["len"]
            if length < size: print("%s: the next seal counts %d of %d bytes" % (name, length, size))
        with open(path, "rb") as f:
            n, claim = 0, b""
            while at < length:
                line, n = f.readline(983041), n + 1
                at, place = at + len(line), "%s line %d" % (name, n)
                need(at <= length and line.endswith(b"\n"), "no whole line")
                m = (EVENT if n > 1 else CLAIM).fullmatch(line)
                need(m and line.decode(), "not an event" if n > 1 else "not a claim")
                need(hashlib.sha256(line[:-75]).hexdigest().encode() == m[m.lastindex], "another sum")
                need(m[1].decode() == session, "another session")
                if n == 1: claim = m[3].decode(); need(int(m[2]) == epoch, "another epoch"); continue
                data, kind = json.loads(line)["data"], m[4]
                if n == 2: need(kind == b"writer_opened" and data["claim"] == claim, "no seal of this claim", 2)
                if kind == b"writer_opened": need(not {"carried", "void", "skipped"} & data.keys(), "a seal with more to say", 2)
                seq += 1
                need((int(m[2]), int(m[3]), m[5].decode()) == (seq, epoch, last), "another number, epoch or prev")
                last = m[6].decode()
                for p in data.get("blobs", []) if not kind.startswith(b"x.") else []:
                    ref = data[p[1:]]["ref"]
                    blob = os.path.join(session, "blobs", re.fullmatch("[0-9a-f]{64}", ref["sha256"])[0])
                    need(os.path.exists(blob), "no blob " + ref["sha256"]), need(digest(blob) == ref["sha256"] and os.path.getsize(blob) == ref["bytes"], "another blob " + ref["sha256"])
                if "%d.%d.%s" % (epoch, seq, last) == head:
                    found = True
                    if i + 1 == len(names): break # what stands behind the head is not judged
            need(n > 1, "no seal", 2)
        behind = size - at if i + 1 == len(names) else 0
    place = ""
    need(found, "the head is %s, and the log has none like it; it ends with %d.%d.%s" % (head, epoch, seq, last))
    end(0, "every sum, number, link and blob is right, up to the head %s%s; what else the lines say is not judged here" % (head, "; the %d bytes behind it are not judged" % behind if behind else ""))
try: main()
except (ValueError, KeyError, TypeError, AttributeError, OSError) as e: end(1, "cannot be read as a log (%s)" % e)
