package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/host/client"
	"holdfast/nip"
)

// simpleVerb is one operation whose outcome is printed as it is.
func (v *deviceVerbs) simpleVerb(use, short string, args int, op func(args []string) (nip.Operation, error)) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cobra.ExactArgs(args), RunE: func(c *cobra.Command, args []string) error {
		o, err := op(args)
		if err != nil {
			return deviceError(err)
		}
		return v.with(c, v.timeout, func(ctx context.Context, d *client.Device) error {
			out, err := d.Call(ctx, o)
			if err != nil {
				return err
			}
			return v.emitOutcome(out)
		})
	}}
}

// callVerb makes any operation, raw.
func (v *deviceVerbs) callVerb() *cobra.Command {
	var opJSON string
	c := &cobra.Command{
		Use: "call --op JSON", Short: "Make any operation and print the verified reply (--op - reads standard input)", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			text, err := v.words(opJSON, 128<<10)
			if err != nil {
				return err
			}
			op, _, err := nip.ParseOperation([]byte(text))
			if err != nil {
				return deviceError(err)
			}
			if op == nil {
				return usage("--op is no operation that this device can make")
			}
			return v.with(c, v.timeout, func(ctx context.Context, d *client.Device) error {
				x, err := d.Exchange(ctx, op)
				var refused *client.Refused
				if err != nil && !errors.As(err, &refused) {
					return err
				}
				return errors.Join(v.emitExchange(x), err)
			})
		},
	}
	c.Flags().StringVar(&opJSON, "op", "", "the operation object")
	return c
}

func (v *deviceVerbs) tasksVerb() *cobra.Command {
	var workspace string
	var limit int
	c := &cobra.Command{
		Use: "tasks", Short: "List tasks", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if limit < 1 || limit > 10_000 {
				return usage("--limit is 1 to 10000")
			}
			return v.with(c, v.timeout, func(ctx context.Context, d *client.Device) error {
				labels, err := labelsOf(ctx, d, nip.Label(workspace))
				if err != nil {
					return err
				}
				var rows []listedTask
				more := false
				for _, l := range labels {
					rows, more, err = listTasks(ctx, d, l, rows, limit)
					if err != nil {
						return err
					}
				}
				return v.emitTasks(rows, more)
			})
		},
	}
	c.Flags().StringVar(&workspace, "workspace", "", "only this workspace label")
	c.Flags().IntVar(&limit, "limit", 200, "at most this many")
	return c
}

// labelsOf is the one label asked for, or all that the host admits.
func labelsOf(ctx context.Context, d *client.Device, only nip.Label) ([]nip.Label, error) {
	if only != "" {
		return []nip.Label{only}, nil
	}
	out, err := d.Call(ctx, nip.WorkspaceList{})
	if err != nil {
		return nil, err
	}
	return out.(nip.Workspaces).Workspaces, nil
}

// listedTask is one row with the label it was listed under.
type listedTask struct {
	label nip.Label
	row   nip.TaskRow
}

// listTasks adds the pages of one listing until limit.
func listTasks(ctx context.Context, d *client.Device, label nip.Label, rows []listedTask, limit int) ([]listedTask, bool, error) {
	q := nip.ListQuery{Workspace: label}
	for len(rows) < limit {
		q.Limit = min(64, limit-len(rows))
		out, err := d.Call(ctx, nip.TaskList{Query: q})
		if err != nil {
			return rows, false, err
		}
		page := out.(nip.Tasks).Tasks
		for _, r := range page.Rows {
			rows = append(rows, listedTask{label, r})
		}
		if !page.MoreAvailable || page.Next == nil || len(page.Rows) == 0 {
			return rows, false, nil
		}
		q.Cursor = page.Next
	}
	return rows, true, nil
}

// findTask reads a task's first page under the label given, or under the one
// that has it.
func findTask(ctx context.Context, d *client.Device, task string, label nip.Label) (nip.Page, error) {
	labels, err := labelsOf(ctx, d, label)
	if err != nil {
		return nip.Page{}, err
	}
	var last error = &client.Refused{Op: "task.read", Code: nip.Forbidden}
	for _, l := range labels {
		page, err := readTask(ctx, d, nip.ReadQuery{Workspace: l, Task: task, Limit: 16})
		var refused *client.Refused
		if err == nil || !errors.As(err, &refused) || refused.Code != nip.Forbidden {
			return page, err
		}
		last = err
	}
	return nip.Page{}, last
}

func readTask(ctx context.Context, d *client.Device, q nip.ReadQuery) (nip.Page, error) {
	out, err := d.Call(ctx, nip.TaskRead{Query: q})
	if err != nil {
		return nip.Page{}, err
	}
	return out.(nip.TaskPage).Task, nil
}

func (v *deviceVerbs) readVerb() *cobra.Command {
	var workspace, cursor string
	var limit int
	var offline bool
	c := &cobra.Command{
		Use: "read TASK", Short: "Read a page of a task (--cursor takes the next member of the last page)", Args: cobra.ExactArgs(1),
		Long: "Reads a page of a task from the host. Where the host does not answer within 20 s (or\n" +
			"--timeout), the last page that it published is shown, and said to be that. The host\n" +
			"publishes one when a turn ends or asks.",
		RunE: func(c *cobra.Command, args []string) error {
			if limit < 1 || limit > 64 {
				return usage("--limit is 1 to 64")
			}
			if offline && cursor != "" {
				return usage("--offline has one page and no cursor")
			}
			q := taskRead{task: args[0], label: nip.Label(workspace), limit: limit}
			if cursor != "" {
				var err error
				if q.cursor, err = parseCursor(cursor); err != nil {
					return err
				}
			}
			wait := v.timeout
			if !c.Flags().Changed("timeout") {
				wait = min(hostWait, v.timeout)
			}
			return v.with(c, 0, func(ctx context.Context, d *client.Device) error {
				if offline {
					return v.readOffline(ctx, d, q)
				}
				return v.read(ctx, d, q, wait, v.timeout)
			})
		},
	}
	c.Flags().StringVar(&workspace, "workspace", "", "the task's workspace label (default: look for it)")
	c.Flags().StringVar(&cursor, "cursor", "", "continue there (JSON)")
	c.Flags().IntVar(&limit, "limit", 16, "transcript steps, 1 to 64")
	c.Flags().BoolVar(&offline, "offline", false, "do not ask the host; show the last page that it published")
	return c
}

// parseCursor decodes a cursor by the strict rules of the operation it goes into.
func parseCursor(s string) (*nip.PageCursor, error) {
	var loose struct {
		Scope struct {
			Workspace string `json:"workspace"`
			Task      string `json:"task"`
			Revision  int64  `json:"revision"`
		} `json:"scope"`
	}
	if err := json.Unmarshal([]byte(s), &loose); err != nil {
		return nil, usage("--cursor is not JSON")
	}
	b, err := json.Marshal(map[string]any{"kind": "task.read", "query": map[string]any{
		"workspace": loose.Scope.Workspace, "task": loose.Scope.Task, "revision": loose.Scope.Revision,
		"cursor": json.RawMessage(s), "limit": 1,
	}})
	if err != nil {
		return nil, err
	}
	op, _, err := nip.ParseOperation(b)
	read, ok := op.(nip.TaskRead)
	if err != nil || !ok || read.Query.Cursor == nil {
		return nil, usage("--cursor is not the next member of a page")
	}
	return read.Query.Cursor, nil
}

func (v *deviceVerbs) originalVerb() *cobra.Command {
	var workspace, source, output string
	c := &cobra.Command{
		Use: "original TASK", Short: "Fetch exact retained bytes of a task and check their digest", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return v.with(c, v.timeout, func(ctx context.Context, d *client.Device) error {
				page, err := findTask(ctx, d, args[0], nip.Label(workspace))
				if err != nil {
					return err
				}
				var ref nip.OriginalRef
				if strings.HasPrefix(source, "artifact:") {
					ref, err = artifactRef(ctx, d, page, source)
				} else {
					ref, err = originalRef(page, source)
				}
				if err != nil {
					return err
				}
				data, err := fetchOriginal(ctx, d, page.Scope, ref)
				if err != nil {
					return err
				}
				return v.emitOriginal(ref, data, output)
			})
		},
	}
	c.Flags().StringVar(&workspace, "workspace", "", "the task's workspace label (default: look for it)")
	c.Flags().StringVar(&source, "source", "", "task, trace:N, manifest:N or artifact:HEX (default the transcript)")
	c.Flags().StringVar(&output, "output", "", "write the bytes to this new file")
	return c
}

// originalRef finds the named original among those that a page shows.
func originalRef(p nip.Page, source string) (nip.OriginalRef, error) {
	var refs []*nip.OriginalRef
	refs = append(refs, p.Evidence.Original)
	for _, a := range p.Artifacts {
		refs = append(refs, a.Original)
	}
	for _, s := range p.Evidence.Steps {
		refs = append(refs, s.Original)
	}
	known := ""
	for _, r := range refs {
		if r == nil {
			continue
		}
		if source == "" || r.Source == source {
			return *r, nil
		}
		known += " " + r.Source
	}
	if source == "" {
		return nip.OriginalRef{}, &cliError{Exit: exitFailed, Code: "absent", Message: "the task shows no original yet"}
	}
	return nip.OriginalRef{}, usage("the page shows no original %q; it shows:%s", source, known)
}

// fetchOriginal reads all chunks and believes them by the digest.
func fetchOriginal(ctx context.Context, d *client.Device, scope nip.Scope, ref nip.OriginalRef) ([]byte, error) {
	var data []byte
	q := nip.OriginalQuery{Scope: scope, Original: ref, Limit: 16_384}
	for {
		out, err := d.Call(ctx, nip.TaskOriginal{Query: q})
		if err != nil {
			return nil, err
		}
		chunk := out.(nip.Original).Original
		data = append(data, chunk.Data...)
		if int64(len(data)) > ref.Bytes || chunk.MoreAvailable && (chunk.Next == nil || len(chunk.Data) == 0) {
			return nil, errors.New("the host's chunks do not add up to the original")
		}
		if !chunk.MoreAvailable {
			break
		}
		q.Cursor = chunk.Next
	}
	if nip.DigestOf(data) != ref.Digest {
		return nil, errors.New("the bytes do not have the digest that the page shows")
	}
	return data, nil
}

func (v *deviceVerbs) emitOriginal(ref nip.OriginalRef, data []byte, output string) error {
	if output != "" {
		f, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, bytes.NewReader(data))
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	doc := map[string]any{"source": ref.Source, "digest": ref.Digest, "bytes": len(data), "media_type": ref.MediaType}
	if output == "" {
		doc["data"] = data
	} else {
		doc["output"] = output
	}
	return v.g.emit(doc, func(w io.Writer) {
		if output == "" {
			_, _ = w.Write(data)
			return
		}
		fmt.Fprintf(w, "%d bytes of %s in %s\n", len(data), ref.Source, output)
	})
}
