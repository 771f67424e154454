package embedded_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/embedded"
	"holdfast/relay/relaytest"
)

// TestFloodIsPaced counts what the relay handles of a flood between a member's
// requests: a burst, then 20 a second of one address over all its connections,
// authenticated or not. The member is answered without any time passing.
func TestFloodIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, device := relaytest.Key(t), relaytest.Key(t)
		r, dial := piped(t, func(o *embedded.Options) {
			o.Class = func(k nip.PubKey) embedded.Class {
				if k == host.Public() || k == device.Public() {
					return embedded.Member
				}
				return embedded.Stranger
			}
			o.Served = func(k nip.PubKey) bool { return k == host.Public() }
		})
		requests := r.Local(host.Public()).Subscribe("s", relaytest.To(host.Public(), func(f *nip.Filter) { f.Authors = []string{string(device.Public())} }))
		<-requests.EOSE()
		member := dial()
		member.login(device)
		var answered atomic.Int64
		for i := range 4 {
			p, k := dial(), relaytest.Key(t)
			if i > 0 {
				p.login(k) // the first stays nobody
			}
			frame := relay.EncodeFrame("EVENT", nip.EncodeEvent(event(t, k, host.Public(), fmt.Sprint(i))))
			go func() {
				for p.ws.Write(p.ctx, websocket.MessageText, frame) == nil {
				}
			}()
			go func() {
				for {
					if _, _, err := p.ws.Read(p.ctx); err != nil {
						return
					}
					answered.Add(1)
				}
			}()
		}
		synctest.Wait()
		if n := answered.Load(); n < 50 || n > 64+8 { // challenges come unasked
			t.Errorf("%d messages were handled at once", n)
		}
		for i := range 10 {
			before := answered.Load()
			began := time.Now()
			if words := member.publish(event(t, device, host.Public(), fmt.Sprint("request ", i))); words != "true" {
				t.Fatal(words)
			}
			<-requests.C()
			if d := time.Since(began); d != 0 {
				t.Errorf("request %d waited %v for a timer", i, d)
			}
			if n := answered.Load() - before; n > 4 {
				t.Errorf("request %d stood behind %d strangers' messages", i, n)
			}
			before = answered.Load()
			time.Sleep(time.Second)
			synctest.Wait()
			if n := answered.Load() - before; n > 24 || n < 10 && i < 5 {
				t.Errorf("%d messages were handled in a second", n)
			}
		}
	})
}
