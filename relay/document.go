package relay

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

const (
	documentTimeout = 2 * time.Second
	maxDocument     = 64 << 10 // bytes read of a NIP-11 document
)

// readDocument asks the relay once a connection how long a message may be
// (NIP-11, limitation.max_message_length). A relay need not have a document:
// whatever goes wrong leaves the last known limit.
func (c *client) readDocument(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, documentTimeout)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http"+strings.TrimPrefix(string(c.o.URL), "ws"), nil)
	if err != nil {
		return
	}
	req.Header.Set("Accept", "application/nostr+json")
	resp, err := c.transport.RoundTrip(req) // no redirects: another name's limits are not this relay's
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err != nil || len(b) > maxDocument {
		return
	}
	if n, ok := messageLimit(b); ok {
		c.limit.Store(n)
	}
}

// messageLimit reads the one member that matters here; 0 where a document does
// not name a limit, false for what is no document.
func messageLimit(b []byte) (int64, bool) {
	var doc struct {
		Limitation struct {
			MaxMessageLength int64 `json:"max_message_length"`
		} `json:"limitation"`
	}
	if err := json.Unmarshal(b, &doc); err != nil || doc.Limitation.MaxMessageLength < 0 {
		return 0, false
	}
	return doc.Limitation.MaxMessageLength, true
}

// mostBytes is how long one message to this relay may be.
func (c *client) mostBytes() int {
	if n := c.limit.Load(); n > 0 && n < maxPublish {
		return int(n)
	}
	return maxPublish
}
