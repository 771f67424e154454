package sandbox

import (
	"os"
	"testing"
	"time"
)

// TestDrainTakesWhatIsLeft tells drain to stop waiting while the pipe is full
// and somebody still holds its writing end.
func TestDrainTakesWhatIsLeft(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := w.Write(make([]byte, 60_000)); err != nil {
		t.Fatal(err)
	}
	c := newCapture(1<<20, 50_000)
	r.SetReadDeadline(time.Now().Add(-time.Second))
	full := make(chan struct{}, 1)
	drain(c, Stdout, r, full)
	if stdout, _ := c.produced(); stdout != 60_000 {
		t.Errorf("%d bytes", stdout)
	}
	select {
	case <-full:
	default:
		t.Error("the limit was not reported")
	}
}
