// Command sqlite measures a call and its result as rows of SQLite, with its log
// synced at every commit: a transaction for each row, and a writer that commits
// together what came while it committed before.
package main

import (
	"database/sql"
	"os"
	"path/filepath"

	_ "github.com/mattn/go-sqlite3"

	"peers/harness"
)

type row struct {
	session, seq int
	kind         string
	body         []byte
	done         chan error
}

func main() {
	measure("SQLite FULL, a commit each", func(_ *sql.DB, insert *sql.Stmt) func(row) error {
		return func(r row) error {
			_, err := insert.Exec(r.session, r.seq, r.kind, r.body)
			return err
		}
	})
	measure("SQLite FULL, batched", func(db *sql.DB, insert *sql.Stmt) func(row) error {
		rows := make(chan row, 1024)
		go func() {
			for r := range rows {
				batch := []row{r}
				for len(rows) > 0 && len(batch) < 512 {
					batch = append(batch, <-rows)
				}
				err := commit(db, insert, batch)
				for _, r := range batch {
					r.done <- err
				}
			}
		}()
		return func(r row) error { rows <- r; return <-r.done }
	})
}

func commit(db *sql.DB, insert *sql.Stmt, batch []row) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	in := tx.Stmt(insert)
	for _, r := range batch {
		if _, err := in.Exec(r.session, r.seq, r.kind, r.body); err != nil {
			return err
		}
	}
	return tx.Commit()
}

type job struct {
	caller, n int
	args      []byte
	out       chan error
}

func measure(name string, writer func(*sql.DB, *sql.Stmt) func(row) error) {
	if !harness.Want(name) {
		return
	}
	dir := harness.Dir()
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "log.db")+"?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=10000&_txlock=immediate")
	harness.Must(err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	_, err = db.Exec(`CREATE TABLE ev (id INTEGER PRIMARY KEY, session INTEGER, seq INTEGER, kind TEXT, body BLOB);
		CREATE INDEX ev_s ON ev(session, seq)`)
	harness.Must(err)
	insert, err := db.Prepare(`INSERT INTO ev(session, seq, kind, body) VALUES(?,?,?,?)`)
	harness.Must(err)
	add := writer(db, insert)
	jobs := make(chan job, 256)
	defer close(jobs)
	for range 256 {
		go func() {
			done := make(chan error, 1)
			for j := range jobs {
				j.out <- add(row{j.caller, 2*j.n + 2, "result", harness.Tool(j.args), done})
			}
		}()
	}
	outs := make([]chan error, 256)
	for i := range outs {
		outs[i] = make(chan error, 1)
	}
	harness.All(name, func(caller, n int) error {
		args := harness.Args(caller, n)
		if err := add(row{caller, 2*n + 1, "call", args, outs[caller]}); err != nil {
			return err
		}
		jobs <- job{caller, n, args, outs[caller]}
		return <-outs[caller]
	})
}
