//go:build !linux

package main

import (
	"context"
	"fmt"
)

func (b *bench) sandboxStart(context.Context) ([]benchRow, error) {
	return nil, fmt.Errorf("%w: there is no sandbox on this system", errNotHere)
}
