package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"holdfast/host"
	"holdfast/relay/embedded"
	"holdfast/sandbox"
)

// version of this binary; a release sets it at link time.
var version = "0.1.0-dev"

// run is main with its streams as parameters.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	g := &globals{stdin: stdin, stdout: stdout, stderr: stderr}
	// Whether errors are JSON must be known before the flags are parsed.
	for _, a := range args {
		if a == "--" {
			break
		}
		g.json = g.json || a == "--json" || a == "--json=true"
	}
	root := rootCommand(g)
	root.SetArgs(args)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := root.ExecuteContext(ctx); err != nil {
		return g.report(err)
	}
	return exitOK
}

func rootCommand(g *globals) *cobra.Command {
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "Run tasks on this computer by command of your paired devices",
		Long: "Holdfast runs on the computer where the work happens. Your phone and your other\n" +
			"computers, paired as devices, send it durable commands; every command has a\n" +
			"receipt and an end with a reason, and every turn runs in a sandbox.",
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRun: func(*cobra.Command, []string) { g.prepare() },
	}
	root.SetIn(g.stdin)
	root.SetOut(g.stdout)
	root.SetErr(g.stderr)
	root.PersistentFlags().StringVar(&g.home, "home", "", "the folder that holds this host (default $HOLDFAST_HOME, else $XDG_STATE_HOME/holdfast)")
	root.PersistentFlags().BoolVar(&g.json, "json", false, "print JSON for scripts")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%s", err) })
	for _, c := range []*cobra.Command{
		upCommand(g), serveCommand(g), initCommand(g), statusCommand(g), doctorCommand(g), inviteCommand(g), invitationsCommand(g), enrollCommand(g),
		devicesCommand(g), workspaceCommand(g), policyCommand(g), taskCommand(g), secretCommand(g),
		journalCommand(g), checkCommand(g), backupCommand(g), restoreBackupCommand(g), gcCommand(g), relayCommand(g), deviceCommand(g),
		tourCommand(g), benchCommand(g), versionCommand(g),
	} {
		root.AddCommand(c)
	}
	wrapUsage(root)
	return root
}

// wrapUsage makes every wrong word a usage error with its own exit code.
func wrapUsage(c *cobra.Command) {
	if c.Args != nil {
		c.Args = usageArgs(c.Args)
	}
	if c.HasSubCommands() && c.RunE == nil && c.Run == nil {
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(c *cobra.Command, args []string) error {
			switch {
			case len(args) > 0:
				return usage("%s has no verb %q; see %s --help", c.CommandPath(), args[0], c.CommandPath())
			case c.HasParent():
				return usage("%s needs a verb; see %s --help", c.CommandPath(), c.CommandPath())
			}
			return c.Help()
		}
	}
	for _, sub := range c.Commands() {
		wrapUsage(sub)
	}
}

// prepare resolves the home and the log after the flags are known.
func (g *globals) prepare() {
	if g.home == "" {
		g.home = defaultHome()
	}
	if abs, err := filepath.Abs(g.home); err == nil {
		g.home = abs
	}
	level := zerolog.InfoLevel
	if l, err := zerolog.ParseLevel(strings.ToLower(os.Getenv("HOLDFAST_LOG"))); err == nil && os.Getenv("HOLDFAST_LOG") != "" {
		level = l
	}
	var out = g.stderr
	if f, ok := g.stderr.(*os.File); ok && isTerminal(f) {
		out = zerolog.ConsoleWriter{Out: f, TimeFormat: time.TimeOnly}
	}
	g.log = zerolog.New(out).Level(level).With().Timestamp().Logger()
}

func defaultHome() string {
	if h := os.Getenv("HOLDFAST_HOME"); h != "" {
		return h
	}
	if s := os.Getenv("XDG_STATE_HOME"); s != "" {
		return filepath.Join(s, "holdfast")
	}
	h, err := os.UserHomeDir()
	if err != nil {
		h = "/"
	}
	return filepath.Join(h, ".local", "state", "holdfast")
}

func (g *globals) coreOptions() host.Options {
	return host.Options{Now: g.clock(), Elapsed: elapsed, Log: g.log, Version: version, Probe: probe, Check: func(report func(string, bool, string)) {
		checkRelay(report, func() (int, error) { return embedded.Check(g.relayStore()) })
	}}
}

// begun is some moment of this process, with the clock that nobody sets.
var begun = time.Now()

func elapsed() time.Duration { return time.Since(begun) }

// probe tries the sandbox once a process: the answer changes only with the
// kernel or the binary.
var probe = sync.OnceValues(func() (string, []string) {
	able := sandbox.Probe()
	if able.Mechanism == "" && able.Degraded {
		return "linux-landlock", able.Gaps // of which the first says what still runs
	}
	return able.Mechanism, able.Gaps
})

// operate runs an operator verb in the resident host, or on the store when no
// host runs; it never waits longer than 2 s for a lock.
func (g *globals) operate(ctx context.Context, verb string, args any, emit func(json.RawMessage) error) error {
	found, err := host.DialOperator(ctx, g.home, verb, args, emit)
	if found || err != nil {
		return err
	}
	return g.operateHere(ctx, verb, args, emit)
}

// operateHere runs an operator verb in this process, under the home's lock.
func (g *globals) operateHere(ctx context.Context, verb string, args any, emit func(json.RawMessage) error) error {
	o := g.coreOptions()
	o.LockWait = 2 * time.Second
	c, err := host.OpenCore(g.home, o)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(args)
	if err == nil {
		err = c.Operate(ctx, verb, raw, func(v any) error {
			b, err := json.Marshal(v)
			if err != nil {
				return err
			}
			return emit(b)
		})
	}
	return errors.Join(err, c.Close())
}

// ask is operate for verbs that answer with one document.
func ask[T any](ctx context.Context, g *globals, verb string, args any) (T, error) {
	var out T
	err := g.operate(ctx, verb, args, func(raw json.RawMessage) error { return json.Unmarshal(raw, &out) })
	return out, err
}
