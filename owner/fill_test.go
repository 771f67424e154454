package owner

import (
	"context"
	"testing"
)

// What Fill writes is what Apply would have left.
func TestFill(t *testing.T) {
	for _, waiting := range []bool{false, true} {
		s := newStore(t)
		if err := s.Fill(context.Background(), Filling{Tasks: 300, Path: "/w", At: 5, Waiting: waiting, Holding: 2}); err != nil {
			t.Fatal(err)
		}
		wantSound(t, s)
		ids, err := s.List()
		if err != nil || len(ids) != 300 {
			t.Fatalf("%d tasks, %v", len(ids), err)
		}
		task, err := s.Get(FilledTask(7))
		want := Cancelled
		if waiting {
			want = Queued
		}
		if err != nil || task.Status != want || task.CreatedAt != 12 {
			t.Fatalf("%+v, %v", task, err)
		}
		if who, err := s.WorkspaceHolder("/w", "other", true); err != nil || who == "" {
			t.Fatalf("holder %q, %v", who, err)
		}
		// Its commands are taken, in its own name.
		again := submitOf("other", FilledCommand(7))
		_, err = s.Apply(context.Background(), encoded(t, again))
		wantCode(t, err, "command_conflict")
		if err := s.Fill(context.Background(), Filling{Tasks: 1, Path: "/w"}); err == nil {
			t.Fatal("filled twice")
		}
	}
}
