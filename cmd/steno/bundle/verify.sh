#!/bin/sh
# Checks this bundle without steno: sums, numbers, links, blobs, the lengths that seals give, and the head. It needs
# sha256sum, sed, awk and grep, and starts two processes for each line: verify.py does a long log in less time.
# usage: sh verify.sh [HEAD], a head that was kept elsewhere; without it, that of the file head.
# Exit 0: all that was checked is right. 1: something is not. 2: no judgement, which steno verify can give.
export LC_ALL=C
f='' n=0 seq=0 found='' behind=0 last=$(printf %064d 0)
end() { echo "$2${f:+: $f line $n}"; exit "$1"; }
cd "$(dirname "$0")" || exit 2
for c in sha256sum awk sed grep mktemp; do command -v $c >/dev/null || end 2 "no $c here"; done
id=$(basename "$(pwd)") && id=${id%.bundle}
head=${1:-$(cat head 2>/dev/null)}
[ "$head" ] || end 2 "no head: this log was damaged when the bundle was made; report.md says where"
[ ! -e head.note ] || { grep -qx "head $head" head.note && grep -qx "session $id" head.note; } || end 1 "the head is not that of head.note"
cd "$id" 2>/dev/null || end 1 "no folder $id"
tmp=$(mktemp) && trap 'rm -f "$tmp"' EXIT || exit 2
hash() { sha256sum | cut -c 1-64; }
h='[0-9a-f]{64}' k='[1-9][0-9]*' t='"ts":"[0-9T:.-]+Z"'
event="^\{\"v\":1,\"session\":\"$id\",\"seq\":$k,\"epoch\":$k,\"id\":\"[0-7][0-9A-HJKMNP-TV-Z]{25}\",$t,\"type\":\"[a-z][a-z0-9_.]*\",\"data\":.+,(\"dur\":(0|$k),)?\"prev\":\"$h\",\"sum\":\"$h\"}\$"
set -- $(ls | grep -E '^([0-9]{6}|[1-9][0-9]{6,})\.jsonl$' | sort -n)
[ $# -gt 0 ] || end 1 "no segments"
for f; do
	shift && n=0 # to the segment that is next, whose seal says what of this one counts
	epoch=$(echo "${f%.jsonl}" | sed 's/^0*//')
	size=$(($(wc -c <"$f")))
	len=$size
	if [ $# -gt 0 ]; then
		pin=$(sed -n '2{s/.*,"previous":{"epoch":\([0-9]*\),"len":\([0-9]*\),"size":\([0-9]*\),.*/\1 \2 \3/p;q;}' "$1")
		[ "${pin%% *}" = "$epoch" ] || end 2 "the next seal does not name this segment"
		[ "${pin##* }" -le $size ] || end 1 "it is shorter than the next seal says"
		[ "${pin##* }" -eq $size ] || end 2 "it goes on behind its end"
		len=${pin#* } && len=${len% *}
		[ "$len" -eq $size ] || echo "$f: the next seal counts $len of $size bytes"
		head -c "$len" "$f" >"$tmp"
	else # what stands behind the head is not judged
		awk -v s=",\"sum\":\"${head##*.}\"}" '{ print } substr($0, length($0) - length(s) + 1) == s { exit }' "$f" >"$tmp"
		[ "$(wc -c <"$tmp")" -le $size ] || end 1 "the end is no whole line"
		behind=$((size - $(wc -c <"$tmp")))
	fi
	cut=$(($(wc -c <"$tmp")))
	[ "$(tr -d '\000' <"$tmp" | wc -c)" -eq $cut ] || end 1 "NUL bytes"
	[ "$(tail -c 1 "$tmp" | tr '\n' E)" = E ] || end 1 "the end is no whole line"
	sed 1d "$tmp" | grep -aEvq "$event" && end 1 "a line that is no event"
	while IFS= read -r line; do
		n=$((n + 1)) text=${line%,\"sum\":*}
		sum=$(printf %s "$text" | hash)
		[ "$line" = "$text,\"sum\":\"$sum\"}" ] && [ ${#line} -le 983040 ] || end 1 "another sum"
		case $n,$text in
		1,'{"v":1,"session":"'"$id"'","epoch":'"$epoch"',"ts":"'*'Z","claim":{'*'}') claim=$sum && continue ;;
		1,*) end 1 "no claim" ;;
		2,*'"type":"writer_opened","data":{"claim":"'"$claim"'",'*) ;;
		2,*) end 2 "no seal of this claim" ;;
		esac
		case $text in *'"type":"writer_opened"'*) case $text in *,\"skipped\":\[*|*,\"void\":\[*|*,\"carried\":*) end 2 "a seal with more to say" ;; esac ;; esac
		seq=$((seq + 1))
		case $text in
		'{"v":1,"session":"'"$id"'","seq":'"$seq"',"epoch":'"$epoch"',"id":'*',"prev":"'"$last"'"') last=$sum ;;
		*) end 1 "another number, epoch or prev" ;;
		esac
		[ "$epoch.$seq.$last" != "$head" ] || found=yes
		case $text in *',"blobs":["/'*) ;; *) continue ;; esac
		for b in $(printf %s "$text" | grep -aEo '"(args|output|structured|content|text|item|patch)":\{"ref":\{"sha256":"[0-9a-f]{64}' | grep -Eo '[0-9a-f]{64}$'); do
			[ -f "blobs/$b" ] || end 1 "no blob $b"
			[ "$(hash <"blobs/$b")" = "$b" ] || end 1 "another blob $b"
		done
	done <"$tmp"
	[ $n -gt 1 ] || end 2 "no seal"
done
f=''
[ "$found" ] || end 1 "the head is $head, and the log has none like it; it ends with $epoch.$seq.$last"
[ $behind -eq 0 ] || echo "the $behind bytes behind the head are not judged"
echo "every sum, number, link and blob is right, up to the head $head; what else the lines say is not judged here"
