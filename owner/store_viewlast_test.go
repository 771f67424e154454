package owner

import "testing"

// The last steps, and a cursor behind them with which a reader goes on.
func TestViewLast(t *testing.T) {
	for _, row := range []struct {
		name             string
		steps, limit     int
		first, delivered int
		trace            bool
	}{
		{"more than asked for", 7, 3, 4, 3, true},
		{"as many", 3, 3, 0, 3, true},
		{"fewer", 2, 3, 0, 2, true},
		{"none", 0, 3, 0, 0, true},
		{"no transcript", 0, 3, 0, 0, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			var trace []byte
			if row.trace {
				trace = traceOf(deviceTask, 1, row.steps, true)
			}
			s := runningTask(t, trace)
			v, err := s.ViewLast(deviceTask, row.limit, 1<<14)
			if err != nil || len(v.Steps) != row.delivered || v.TotalSteps != row.steps || v.More {
				t.Fatalf("%v %+v", err, v)
			}
			if len(v.Steps) > 0 && v.Steps[0].Index != row.first {
				t.Fatalf("first step %d", v.Steps[0].Index)
			}
			if after := view(t, s, row.limit, v.Next); len(after.Steps) != 0 || after.More {
				t.Fatalf("%+v", after)
			}
		})
	}
	_, err := runningTask(t, nil).ViewLast("nobody", 1, 10)
	wantCode(t, err, "not_found")
}
