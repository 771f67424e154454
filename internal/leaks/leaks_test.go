package leaks

import (
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

// A goroutine that ends late is waited for, one that does not is an error.
func TestSettled(t *testing.T) {
	late := make(chan struct{})
	go func() { <-late }()
	if err := settled(0); err == nil {
		t.Error("a goroutine that waits was not found")
	}
	time.AfterFunc(time.Second, func() { close(late) })
	if err := settled(limit); err != nil {
		t.Errorf("one that ends after a second: %v", err)
	}
}
