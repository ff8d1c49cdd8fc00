package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"steno/journal"
	"steno/replay"
)

func (a *app) exportCommand() *cobra.Command {
	var all bool
	var x sessionExport
	c := &cobra.Command{
		Use: "export SESSION --format FORMAT | export --all DIR", Short: "give a session in another form, or copy all sessions into a folder",
		Long: sessionExportHelp + "\n\nexport --all makes DIR, which must not be there yet: a store in which every session is packed, each verified when it is\n" +
			"copied. It needs no lease and changes nothing, so it is the way to back up a store that is in use. What was\n" +
			"acknowledged before is in it. A damaged session is copied as it is, and makes exit 4. Every command reads the copy\n" +
			"with --dir DIR, and a session goes on there; tar --zstd -xf DIR/archive/SESSION.tar.zst -C STORE/sessions puts one back\n" +
			"into another store.",
		Example: "  steno export latest --format md --to record.md\n  steno export demo --format anthropic\n  steno export --all backup\n  steno verify --dir backup",
		Args: func(c *cobra.Command, args []string) error {
			if all {
				return exactly("DIR")(c, args)
			}
			return exactly("SESSION")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case all && (x.format != "" || x.to != ""):
				return usage("--all excludes --format and --to")
			case x.format != "":
				if err := x.check(c, a); err != nil {
					return err
				}
				return a.onSession(func(ctx context.Context, store *journal.Files, args []string) error {
					return a.into(x.to, func() error { return a.exportSession(ctx, store, args[0], x) })
				})(c, args)
			case !all:
				return usage("export needs --format or --all")
			}
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return usage("the folder %q has no absolute form", args[0])
			}
			return a.onStore(func(ctx context.Context, store *journal.Files, _ []string) error { return a.export(ctx, store, dir) })(c, args)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "copy every session")
	x.flags(c)
	return c
}

func (a *app) export(ctx context.Context, store *journal.Files, dir string) error {
	var worst error
	rows := []journal.Exported{}
	err := store.Export(ctx, dir, journal.ExportOptions{
		NewState: func() journal.State { return replay.NewChecker() },
		Each: func(x journal.Exported) error {
			if x.Error != nil {
				worst = exitCode(x.Error.Kind.Info().Exit)
				a.report(x.Error.Err())
			}
			switch a.format {
			case "jsonl":
				return a.json(x)
			case "json":
				rows = append(rows, x)
				return nil
			}
			word, what := "ok  ", fmt.Sprintf("%s, %s, %d bytes in %d, head %s", many(x.Segments, "segment"), many(x.Blobs, "blob"), x.Bytes, x.Size, x.Head)
			switch {
			case x.Removed:
				what = "was removed, which is copied"
			case x.Error != nil && x.Size == 0:
				word, what = "FAIL", "there is no copy: "+string(x.Error.Kind)
			case x.Size == 0:
				what = "was never begun; its folder is copied"
			case x.Error != nil:
				word, what = "FAIL", "is damaged, and copied as it is: "+string(x.Error.Kind)
			}
			_, err := fmt.Fprintf(a.out, "%s  %s  %s\n", word, inert(x.Session), inert(what))
			return err
		},
	})
	if err != nil {
		return err
	}
	if a.format == "json" {
		err = a.json(struct {
			OK       bool               `json:"ok"`
			Dir      string             `json:"dir"`
			Sessions []journal.Exported `json:"sessions"`
		}{worst == nil, dir, rows})
	} else if a.format != "jsonl" {
		_, err = fmt.Fprintln(a.out, inert(dir))
	}
	if err == nil {
		err = worst
	}
	return err
}
