# Recomputes every sum and every prev of a session with nothing but sha256sum.
# usage: sh sha256sum.sh SEGMENT..., in their order
cat "$@" | {
	prev=$(printf %064d 0)
	while IFS= read -r line; do
		text=${line%,\"sum\":*}
		sum=$(printf %s "$text" | sha256sum | cut -c 1-64)
		[ "$line" = "$text,\"sum\":\"$sum\"}" ] || { echo "another sum: ${line%%,\"id\"*}"; exit 1; }
		case ${text#*,*,} in # what stands behind v and session
		\"epoch\"*) ;; # a claim is no link of the chain
		*",\"prev\":\"$prev\"") prev=$sum ;;
		*) echo "another prev: ${line%%,\"id\"*}"; exit 1 ;;
		esac
	done
	echo "ok, up to $prev"
}
