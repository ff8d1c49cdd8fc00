#!/bin/sh
# Checks with openssl who signed head.note, which is a C2SP signed note: sh note.sh KEY, the verifier key of who should
# have, <name>+<hash>+<key>. Exit 0: they have. 1: they have not. 2: that cannot be checked here.
end() { echo "$2"; exit "$1"; }
cd "$(dirname "$0")" || exit 2
name=${1%%+*} t=$(mktemp -d) && trap 'rm -r "$t"' EXIT || exit 2
[ "$1" ] && [ -e head.note ] || end 2 "usage: sh note.sh KEY, beside a head.note"
openssl pkeyutl -help 2>&1 | grep -q rawin || end 2 "the signature was NOT checked: there is no openssl here that can"
{ printf '\060\052\060\005\006\003\053\145\160\003\041\000' && echo "${1#*+*+}" | base64 -d | tail -c 32; } >"$t/key" # as DER
sed '/^$/,$d' head.note >"$t/text"
grep -F "— $name " head.note | sed 's/.* //' | base64 -d | tail -c +5 >"$t/signature"
openssl pkeyutl -verify -rawin -pubin -keyform DER -inkey "$t/key" -in "$t/text" -sigfile "$t/signature" >/dev/null 2>&1 ||
	end 1 "head.note is not signed by $name, or was changed"
echo "head.note is signed by $name"
