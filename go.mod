module steno

go 1.26

require (
	github.com/go-json-experiment/json v1.27.2
	github.com/oklog/ulid/v2 v2.1.2
)
