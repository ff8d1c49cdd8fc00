#!/usr/bin/env python3
"""Checks this bundle without steno: python3 verify.py [HEAD] [KEY]
HEAD was kept elsewhere; without it that of the file head counts. KEY is the verifier key of who signed head.note.
Exit 0: every sum, number, link and blob up to the head is right. 1: something is not. 2: no judgement: ask steno verify."""
import glob, hashlib, json, os, subprocess, sys
os.chdir(os.path.dirname(os.path.abspath(__file__)))
place, session = "", os.path.basename(os.getcwd()).removesuffix(".bundle")
def need(ok, text, code=1):
    if not ok: print(text + ": " + place if place else text); sys.exit(code)
def main(head, key):
    global place
    need(head, "no head: this log was damaged when the bundle was made; report.md says where", 2)
    signed = os.path.exists("head.note")
    if signed: need("\nsession %s\nhead %s\n" % (session, head) in open("head.note").read(), "the head is not that of head.note")
    if key: need((code := subprocess.call(["sh", "note.sh", key])) == 0, "the signature is not right, or cannot be checked", code)
    elif signed: print("the signature in head.note was NOT checked: give its verifier key too")
    os.chdir(session)
    names = sorted(glob.glob("[0-9]*.jsonl"), key=lambda n: int(n[:-6]))
    seq, last, found = 0, "0" * 64, False
    for name, after in zip(names, names[1:] + [None]):
        seal = after and open(after, "rb").read(1 << 21).split(b"\n")[1:2]
        need(not after or seal and seal[0], "no seal in " + (after or name), 2)
        ends = after and json.loads(seal[0])["seq"] - 1 # where the next segment goes on
        with open(name, "rb") as f:
            for n, line in enumerate(f, 1):
                place, sum = "%s line %d" % (name, n), hashlib.sha256(line[:-75]).hexdigest()
                need(line[-75:] == b',"sum":"%s"}\n' % sum.encode(), "another sum, or no whole line")
                e = json.loads(line)
                if n == 1: claim = sum; need((e["session"], e["epoch"]) == (session, int(name[:-6])), "another session or epoch"); continue
                data, opens = e["data"], e["type"] == "writer_opened"
                if n == 2 or opens: need(opens and data["claim"] == claim and not {"carried", "void", "skipped"} & data.keys(), "a seal that says more", 2)
                need((e["session"], e["epoch"], e["seq"], e["prev"]) == (session, int(name[:-6]), seq + 1, last), "another session, epoch, number or prev")
                for p in data.get("blobs", []) if e["type"][:2] != "x." else []:
                    blob = os.path.basename(data[p[1:]]["ref"]["sha256"])
                    need(os.path.exists("blobs/" + blob), "no blob " + blob)
                    need(hashlib.sha256(open("blobs/" + blob, "rb").read()).hexdigest() == blob, "another blob " + blob)
                seq, last = seq + 1, sum
                found = found or "%d.%d.%s" % (e["epoch"], seq, last) == head
                if seq == ends or found and not after: break
            if behind := os.path.getsize(name) - f.tell(): print("%s: the %d bytes behind event %d are not judged" % (name, behind, seq))
    place = ""
    need(found, "the head is %s, and the log has none like it; it ends with event %d, %s" % (head, seq, last))
    print("every sum, number, link and blob is right, up to the head %s; what else the lines say is not judged here" % head)
try:
    given = {"+" in a: a for a in sys.argv[1:]}
    main(given.get(False) or (open("head").read().strip() if os.path.exists("head") else ""), given.get(True))
except (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError) as e: need(False, "cannot be read as a log (%s)" % e)
