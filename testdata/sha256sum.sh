# Checks the log of a session without steno: sums, numbers, links, blobs, and the lengths that seals give.
# usage: sh sha256sum.sh FOLDER, of a session.  Exit 0: all that was checked is right. 1: something is not. 2: no
# judgement: no session, or carried lines, void claims, surplus or a repair, which steno verify understands, or
# segments that are in an archive, which are unpacked first.
export LC_ALL=C
end() { echo "$2${f:+: $f line $n}"; exit "$1"; }
f='' seq=0 last=$(printf %064d 0)
cd "${1:-/dev/null}" 2>/dev/null && id=$(basename "$(pwd)") || end 2 "usage: sh sha256sum.sh FOLDER, of a session"
for c in sha256sum iconv mktemp; do command -v $c >/dev/null || end 2 "no $c here"; done
plain() { [ "$(find "$1" -type f -links 1 ! -perm -020 ! -perm -002 2>/dev/null)" ]; }
hash() { sha256sum | cut -c 1-64; }
tmp=$(mktemp) && trap 'rm -f "$tmp"' EXIT || exit 2
h='[0-9a-f]{64}' k='[1-9][0-9]*' t='"ts":"[0-9]{4}(-[0-9]{2}){2}T([0-9]{2}:){2}[0-9]{2}\.[0-9]{6}Z"'
event="^\{\"v\":1,\"session\":\"$id\",\"seq\":$k,\"epoch\":$k,\"id\":\"[0-7][0-9A-HJKMNP-TV-Z]{25}\",$t,\"type\":\"[a-z][a-z0-9_.]*\",\"data\":.+,(\"dur\":(0|$k),)?\"prev\":\"$h\",\"sum\":\"$h\"}\$"
set -- $(ls | grep -E '^([0-9]{6}|[1-9][0-9]{6,})\.jsonl$' | sort -n)
for f; do plain "$f" || end 1 "no plain file of ours"; done
f=''
[ ! -e "../../archive/$id.tar.zst" ] || { [ $# -gt 0 ] && sed 2q "$1" | grep -aEq '^\{"v":1,"session":"[^"]*","seq":1,'; } ||
	end 2 "$id is packed; check what this unpacks: tar --zstd -xf ../../archive/$id.tar.zst -C ELSEWHERE"
[ $# -gt 0 ] || end 2 "no segments in $id"
grep -aEq "^\{\"v\":1,\"session\":\"$id\",\"seq\":$k,\"epoch\":$k,\"id\":\"[0-9A-Z]+\",$t,\"type\":\"writer_opened\",\"data\":\{.*\"skipped\":\[" "$@" &&
	end 2 "$id was repaired"
for f; do
	shift && n=0 # to the segment that is next, whose seal says what of this one counts
	epoch=$(echo "${f%.jsonl}" | sed 's/^0*//')
	size=$(($(wc -c <"$f")))
	len=$size pin=${1:+$(sed -n '2s/.*,"previous":{"epoch":\([0-9]*\),"len":\([0-9]*\),"size":\([0-9]*\),.*/\1 \2 \3/p' "$1")}
	case $#,$pin in
	0,*) ;;
	*,"$epoch "*" $size") len=${pin#* } && len=${len% *} ;;
	*,"$epoch "*) end $((size < ${pin##* } ? 1 : 2)) "it has $size bytes, and the next seal says ${pin##* }" ;;
	*) end 2 "the next segment has no seal that names this one" ;;
	esac
	[ "$len" -eq "$size" ] || echo "$f: the next seal counts $len of $size bytes"
	head -c "$len" "$f" >"$tmp" && [ "$(tr -d '\000' <"$tmp" | wc -c)" -eq "$len" ] || end 1 "NUL bytes, or too few"
	[ "$(tail -c 1 "$tmp" | tr '\n' E)" = E ] || end 1 "the end is no whole line"
	iconv -f UTF-8 -t UTF-8 "$tmp" >/dev/null 2>&1 || end 1 "no UTF-8"
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
		*,*,\"skipped\":\[*|*,*,\"void\":\[*|*,*,\"carried\":*) case $text in *'"type":"writer_opened"'*) end 2 "a seal with more to say" ;; esac ;;
		esac
		seq=$((seq + 1))
		case $text in
		'{"v":1,"session":"'"$id"'","seq":'"$seq"',"epoch":'"$epoch"',"id":'*',"prev":"'"$last"'"') last=$sum ;;
		*) end 1 "another number, epoch or prev" ;;
		esac
		case $text in *',"blobs":["/'*) ;; *) continue ;; esac
		for b in $(printf %s "$text" | grep -aEo '\{"ref":\{"sha256":"[0-9a-f]{64}' | grep -Eo '[0-9a-f]{64}'); do
			if [ -e "blobs/$b" ]; then plain "blobs/$b" && sum=$(hash <"blobs/$b"); else plain "blobs/$b.zst" && sum=$(zstd -dqc "blobs/$b.zst" | hash); fi
			[ "$sum" = "$b" ] || end 1 "blob $b is not what its name says, or cannot be read here"
		done
	done <"$tmp"
	[ $n -gt 1 ] || end 2 "no seal"
done
echo "every sum, number and link is right, up to $epoch.$seq.$last; what else the lines say is not judged here"
