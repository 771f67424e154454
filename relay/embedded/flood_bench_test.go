package embedded_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/embedded"
	"holdfast/relay/relaytest"
)

// BenchmarkRequestUnderFlood is a request of an enrolled device and the host's
// reply, over a real socket and two durable commits: first alone, then while
// strangers publish to the host at full speed over 32 connections from 8
// addresses. The ratio of the two 99th percentiles is what a flood costs the
// device; the flood's own clients take their part of this machine's processors
// in it.
//
//	go test ./relay/embedded -run '^$' -bench RequestUnderFlood -benchtime 1000x
func BenchmarkRequestUnderFlood(b *testing.B) {
	host, device := relaytest.Key(b), relaytest.Key(b)
	r, url := open(b, func(o *embedded.Options) {
		o.Class = func(k nip.PubKey) embedded.Class {
			if k == host.Public() || k == device.Public() {
				return embedded.Member
			}
			return embedded.Stranger
		}
		o.Served = func(k nip.PubKey) bool { return k == host.Public() }
	})
	echo(b, r, host, device.Public())
	d := dial(b, url, device)
	replies := d.Subscribe("replies", relaytest.To(device.Public(), relaytest.LiveOnly))
	relaytest.AwaitEOSE(b, replies)
	requests := make([]*nip.Event, 2*b.N)
	for i := range requests {
		requests[i] = event(b, device, host.Public(), fmt.Sprint("request ", i, strings.Repeat("x", 1500)))
	}
	measure := func(list []*nip.Event) (p99, worst time.Duration) {
		var took []time.Duration
		for _, ev := range list {
			began := time.Now()
			relaytest.Publish(b, d, ev)
			if got := relaytest.Next(b, replies); got.Event.Event().Content != "to "+ev.ID {
				b.Fatal("another reply")
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took[min(len(took)-1, len(took)*99/100)], took[len(took)-1]
	}
	crowd := strangers(b, url, host.Public())
	b.ResetTimer()
	calm, _ := measure(requests[:b.N])
	poured, stop := pour(b, crowd)
	began, before := time.Now(), poured.Load()
	loud, worst := measure(requests[b.N:])
	rate := float64(poured.Load()-before) / time.Since(began).Seconds()
	b.StopTimer()
	stop()
	b.ReportMetric(float64(calm.Microseconds())/1000, "calm-p99-ms")
	b.ReportMetric(float64(loud.Microseconds())/1000, "flood-p99-ms")
	b.ReportMetric(float64(worst.Microseconds())/1000, "flood-worst-ms")
	b.ReportMetric(float64(loud)/float64(calm), "p99-ratio")
	b.ReportMetric(rate, "strangers/s")
}

// echo is a host that answers each request of one device, and reads what
// strangers send.
func echo(b *testing.B, r *embedded.Relay, host nip.SecretKey, device nip.PubKey) {
	l := r.Local(host.Public())
	known := l.Subscribe("known", relaytest.To(host.Public(), func(f *nip.Filter) { f.Authors = []string{string(device)} }))
	strangers := l.Subscribe("redeem", relaytest.To(host.Public(), relaytest.Limit(64)))
	relaytest.AwaitEOSE(b, known)
	var all sync.WaitGroup
	all.Go(func() {
		for q := range known.C() {
			ev := relaytest.Event(b, host, device, relaytest.Mailbox('b'), time.Now().Unix(), "to "+q.Event.Event().ID)
			if err := l.Publish(context.Background(), ev); err != nil {
				return // the relay closes
			}
		}
	})
	all.Go(func() {
		for range strangers.C() {
		}
	})
	b.Cleanup(func() { l.Close(); all.Wait() })
}

// stranger is one connection of a flood and what it sends, over and over.
type stranger struct {
	ws     *websocket.Conn
	frames [][]byte
}

// strangers connects them and signs what they will send.
func strangers(b *testing.B, url nip.RelayURL, host nip.PubKey) (list []stranger) {
	for i := range 32 {
		from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 3, byte(1+i%8))}}
		transport := &http.Transport{DialContext: from.DialContext}
		ws, _, err := websocket.Dial(b.Context(), string(url), &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
		if err != nil {
			b.Fatal(err)
		}
		ws.SetReadLimit(1 << 20)
		b.Cleanup(func() { ws.CloseNow() })
		s, k := stranger{ws: ws}, relaytest.Key(b)
		(&peer{t: b, url: url, ws: ws, ctx: b.Context()}).login(k)
		for j := range 16 {
			s.frames = append(s.frames, relay.EncodeFrame("EVENT", nip.EncodeEvent(event(b, k, host, fmt.Sprint(j, strings.Repeat("x", 1000))))))
		}
		list = append(list, s)
	}
	return list
}

// pour has strangers publish as fast as the relay reads, until stop.
func pour(b *testing.B, list []stranger) (sent *atomic.Int64, stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	sent = new(atomic.Int64)
	var all sync.WaitGroup
	for _, s := range list {
		all.Go(func() {
			for j := 0; s.ws.Write(ctx, websocket.MessageText, s.frames[j%len(s.frames)]) == nil; j++ {
				sent.Add(1)
			}
		})
		all.Go(func() {
			for {
				if _, _, err := s.ws.Read(ctx); err != nil {
					return
				}
			}
		})
	}
	return sent, func() { cancel(); all.Wait() }
}
