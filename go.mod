module steno

go 1.26.0

require (
	github.com/go-json-experiment/json v1.27.2
	github.com/gofrs/flock v0.13.2
	github.com/oklog/ulid/v2 v2.1.2
	golang.org/x/sys v0.50.0
)
