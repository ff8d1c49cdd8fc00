#!/bin/sh
# Checks this bundle without steno: sh verify.sh [HEAD] [KEY]. It starts two processes a line: verify.py is faster.
# HEAD was kept elsewhere; without it that of the file head counts. KEY is the verifier key of who signed head.note.
# Exit 0: every sum, number, link and blob up to the head is right. 1: something is not. 2: no judgement: ask steno verify.
export LC_ALL=C
f='' n=0 seq=0 found='' key='' last=$(printf %064d 0)
end() { echo "$2${f:+: $f line $n}"; exit "$1"; }
hash() { sha256sum | cut -c 1-64; }
cd "$(dirname "$0")" && id=$(basename "$(pwd)") && id=${id%.bundle} head=$(cat head 2>/dev/null)
for a; do case $a in *+*) key=$a ;; *) head=$a ;; esac; done
[ "$head" ] || end 2 "no head: this log was damaged when the bundle was made; report.md says where"
for c in sha256sum sed grep; do command -v $c >/dev/null || end 2 "no $c here"; done
[ ! -e head.note ] || { grep -qx "head $head" head.note && grep -qx "session $id" head.note; } || end 1 "the head is not that of head.note"
if [ "$key" ]; then sh note.sh "$key" || exit
elif [ -e head.note ]; then echo "the signature in head.note was NOT checked: give its verifier key too"; fi
cd "$id" 2>/dev/null || end 1 "no folder $id"
set -- $(ls | grep -E '^[0-9]{6,}\.jsonl$' | sort -n)
for f; do
	shift && n=0 at=0 epoch=$(echo "${f%.jsonl}" | sed 's/^0*//') next=0
	[ $# -eq 0 ] || next=$(sed -n '2{s/^{"v":1,"session":"[^"]*","seq":\([0-9]*\),.*/\1/p;q;}' "$1") # the next seal goes on with it
	[ "$next" ] || end 2 "the next segment has no seal"
	while [ $((seq + 1)) -ne "$next" ] && IFS= read -r line; do
		n=$((n + 1)) at=$((at + ${#line} + 1)) text=${line%,\"sum\":*}
		sum=$(printf %s "$text" | hash)
		[ "$line" = "$text,\"sum\":\"$sum\"}" ] || end 1 "another sum, or no whole line"
		case $n,$text in
		1,'{"v":1,"session":"'"$id"'","epoch":'"$epoch"',"ts":"'*) claim=$sum && continue ;;
		1,*) end 1 "another session or epoch" ;;
		2,*'"type":"writer_opened","data":{"claim":"'"$claim"'",'*) ;;
		2,*) end 2 "no seal of this claim" ;;
		esac
		seq=$((seq + 1)) own='{"v":1,"session":"'"$id"'","seq":'"$seq"',"epoch":'"$epoch"',"id":"'
		# Of a fixed width, so that nothing in the data passes for it.
		type=${text#"$own"??????????????????????????\",\"ts\":\"???????????????????????????\",\"type\":\"} type=${type%%\"*}
		case $type,$text in writer_opened,*,\"skipped\":\[* | writer_opened,*,\"void\":\[* | writer_opened,*,\"carried\":*) end 2 "a seal that says more" ;; esac
		case $text in "$own"*',"prev":"'"$last"'"') last=$sum ;; *) end 1 "another session, epoch, number or prev" ;; esac
		keys='' data=${text%,\"prev\":*}
		case $data in *[0-9]) data=${data%,\"dur\":*} ;; esac
		case $type,$data in x.*) ;; *',"blobs":["/'*'"]}') keys=${data##*,\"blobs\":[} keys=$(echo "${keys%%]*}" | tr -cs a-z ' ') ;; esac # the last key
		for k in $keys; do # a tool may say the like further in, which is no blob
			refs=$(printf %s "$text" | grep -aEo "\"$k\":\{\"ref\":\{\"sha256\":\"[0-9a-f]{64}" | grep -Eo '[0-9a-f]{64}$') || end 2 "no $k is a blob"
			code=1 && [ ${#refs} -eq 64 ] || code=2
			for b in $refs; do
				[ -f "blobs/$b" ] || end $code "no blob $b"
				[ "$(hash <"blobs/$b")" = "$b" ] || end $code "another blob $b"
			done
		done
		[ "$epoch.$seq.$last" != "$head" ] || { found=yes && [ $# -gt 0 ]; } || break
	done <"$f"
	[ "$(head -c $at "$f" | tr -d '\000' | wc -c)" -eq $at ] || end 1 "NUL bytes, or no whole line"
	[ $# -eq 0 ] || [ $((seq + 1)) -eq "$next" ] || end 1 "the last whole line is event $seq, and the next segment goes on with $next"
	behind=$(($(wc -c <"$f") - at))
	[ $behind -eq 0 ] || echo "$f: the $behind bytes behind event $seq are not judged"
done
f=''
[ "$found" ] || end 1 "the head is $head, and the log has none like it; it ends with event $seq, $last"
echo "every sum, number, link and blob is right, up to the head $head; what else the lines say is not judged here"
