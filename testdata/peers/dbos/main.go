// Command dbos measures DBOS Transact: a workflow with one step for each call.
// DBOS_URL is its database; without it DBOS keeps a file of SQLite, with its
// own settings.
package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	_ "github.com/dbos-inc/dbos-transact-golang/dbos/driver/sqlite"

	"peers/harness"
)

func call(ctx dbos.Context, args string) (string, error) {
	return dbos.RunAsStep(ctx, func(context.Context) (string, error) { return string(harness.Tool([]byte(args))), nil })
}

func main() {
	name, url := "DBOS on PostgreSQL", os.Getenv("DBOS_URL")
	if url == "" {
		dir := harness.Dir()
		defer os.RemoveAll(dir)
		name, url = "DBOS on SQLite", "sqlite:"+filepath.Join(dir, "dbos.db")
	}
	if !harness.Want(name) {
		return
	}
	c, err := dbos.NewContext(context.Background(), dbos.Config{AppName: "peer", DatabaseURL: url, Logger: slog.New(slog.DiscardHandler)})
	harness.Must(err)
	dbos.RegisterWorkflow(c, call)
	harness.Must(dbos.Launch(c))
	defer dbos.Shutdown(c, 2*time.Second)
	harness.All(name, func(caller, n int) error {
		h, err := dbos.RunWorkflow(c, call, string(harness.Args(caller, n)))
		if err != nil {
			return err
		}
		_, err = h.GetResult()
		return err
	})
}
