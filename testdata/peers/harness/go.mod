module peers/harness

go 1.26.0
