package journal_test

import (
	"testing"

	"steno/journal/journaltest"
)

func TestMain(m *testing.M) {
	journaltest.Main(m, map[string]func([]byte) error{"forcer": forcer, "repairer": repairer, "packer": packer, "holder": holdMany})
}
