package main

import (
	"errors"
	"testing"
)

// How a request ended is the verb's exit: only a refusal or silence fails.
func TestEnrollmentEnd(t *testing.T) {
	for state, exit := range map[string]int{"approved": exitOK, "open": exitOK, "": exitOK, "denied": exitFailed, "closed": exitFailed, "expired": exitFailed} {
		err := enrollmentEnd(state)
		var ce *cliError
		switch {
		case exit == exitOK && err != nil:
			t.Errorf("%q: %v", state, err)
		case exit != exitOK && (!errors.As(err, &ce) || ce.Exit != exit || ce.Code != state || ce.Hint == ""):
			t.Errorf("%q: %v", state, err)
		}
	}
}
