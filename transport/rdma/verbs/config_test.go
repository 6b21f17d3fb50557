package verbs

import (
	"reflect"
	"testing"
	"time"
)

func TestConfigOfABindAlone(t *testing.T) {
	c := Config{Bind: "10.0.0.1:0"}
	if err := c.resolve(); err != nil {
		t.Fatal(err)
	}
	c.Log(Info, "nobody is told")
	c.Log = nil
	want := Config{
		Bind: "10.0.0.1:0", AdvertiseHost: "10.0.0.1", QueuePairs: 2, ChunkBytes: 4 << 20, RegionBytes: 2 << 30, Timeout: 14, Retries: 6,
		WindowWrites: 256, StallTimeout: 6 * time.Second, GoneTimeout: 3 * time.Second, DestroyTimeout: 5 * time.Second,
		DialTimeout: 5 * time.Second, HandshakeTimeout: 10 * time.Second, Sysfs: "/sys", drain: drainTimeout,
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, want %+v", c, want)
	}
}

// The limits themselves are taken as they are.
func TestConfigAtItsLimits(t *testing.T) {
	for _, want := range []Config{
		{
			QueuePairs: 1, ChunkBytes: 4 << 10, RegionBytes: 4 << 10, Timeout: 1, Retries: 1, WindowWrites: 1, StallTimeout: time.Millisecond,
			GoneTimeout: time.Millisecond, DestroyTimeout: time.Millisecond, DialTimeout: time.Millisecond, HandshakeTimeout: time.Millisecond,
		},
		{
			QueuePairs: 16, ChunkBytes: 1 << 30, RegionBytes: 1 << 62, TrafficClass: 255, ServiceLevel: 15, Timeout: 20, Retries: 6,
			WindowWrites: 1 << 20, StallTimeout: 24 * time.Hour, GoneTimeout: 24 * time.Hour, DestroyTimeout: 24 * time.Hour,
			DialTimeout: 24 * time.Hour, HandshakeTimeout: 24 * time.Hour, StrictOrdering: true,
		},
	} {
		want.Bind, want.AdvertiseHost, want.Sysfs, want.drain = "[::]:7000", "node-3", "/other", time.Second
		got := want
		if err := got.resolve(); err != nil {
			t.Fatal(err)
		}
		if got.Log = nil; !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	c := Config{Bind: "a:1", RegionBytes: 3<<20 + 5000}
	if err := c.resolve(); err != nil || c.RegionBytes != 3<<20+4096 {
		t.Errorf("got regions of %d bytes, error %v; want whole pages", c.RegionBytes, err)
	}
}

func TestConfigThatIsRefused(t *testing.T) {
	day := 24*time.Hour + 1
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{QueuePairs: -1}, "verbs: queue pairs: got -1, want 1 to 16"},
		{Config{QueuePairs: 17}, "verbs: queue pairs: got 17, want 1 to 16"},
		{Config{ChunkBytes: 4095}, "verbs: chunk bytes: got 4095, want 4096 to 1073741824"},
		{Config{ChunkBytes: 1<<30 + 1}, "verbs: chunk bytes: got 1073741825, want 4096 to 1073741824"},
		{Config{RegionBytes: 4095}, "verbs: region bytes: got 4095, want at least 4096"},
		{Config{TrafficClass: -1}, "verbs: traffic class: got -1, want 0 to 255"},
		{Config{TrafficClass: 256}, "verbs: traffic class: got 256, want 0 to 255"},
		{Config{ServiceLevel: -1}, "verbs: service level: got -1, want 0 to 15"},
		{Config{ServiceLevel: 16}, "verbs: service level: got 16, want 0 to 15"},
		{Config{Timeout: -1}, "verbs: timeout: got -1, want 1 to 20"},
		{Config{Timeout: 21}, "verbs: timeout: got 21, want 1 to 20"},
		{Config{Retries: -1}, "verbs: retries: got -1, want 1 to 6"},
		{Config{Retries: 7}, "verbs: retries: got 7, want 1 to 6"},
		{Config{WindowWrites: -1}, "verbs: window writes: got -1, want 1 to 1048576"},
		{Config{WindowWrites: 1<<20 + 1}, "verbs: window writes: got 1048577, want 1 to 1048576"},
		{Config{StallTimeout: -1}, "verbs: stall timeout: got -1ns, want 1ms to 24h"},
		{Config{StallTimeout: day}, "verbs: stall timeout: got 24h0m0.000000001s, want 1ms to 24h"},
		{Config{GoneTimeout: 999 * time.Microsecond}, "verbs: gone timeout: got 999µs, want 1ms to 24h"},
		{Config{GoneTimeout: day}, "verbs: gone timeout: got 24h0m0.000000001s, want 1ms to 24h"},
		{Config{DestroyTimeout: -1}, "verbs: destroy timeout: got -1ns, want 1ms to 24h"},
		{Config{DestroyTimeout: day}, "verbs: destroy timeout: got 24h0m0.000000001s, want 1ms to 24h"},
		{Config{DialTimeout: 1}, "verbs: dial timeout: got 1ns, want 1ms to 24h"},
		{Config{DialTimeout: day}, "verbs: dial timeout: got 24h0m0.000000001s, want 1ms to 24h"},
		{Config{HandshakeTimeout: 1}, "verbs: handshake timeout: got 1ns, want 1ms to 24h"},
		{Config{HandshakeTimeout: day}, "verbs: handshake timeout: got 24h0m0.000000001s, want 1ms to 24h"},
		{Config{Bind: "-"}, "verbs: bind: address -: missing port in address"},
		{Config{Bind: "0.0.0.0:7000"}, `verbs: advertise host: bind is "0.0.0.0:7000", which nobody can dial: want a host`},
		{Config{Bind: "[::]:7000"}, `verbs: advertise host: bind is "[::]:7000", which nobody can dial: want a host`},
		{Config{Bind: ":7000"}, `verbs: advertise host: bind is ":7000", which nobody can dial: want a host`},
	} {
		if c.config.Bind == "" {
			c.config.Bind = "10.0.0.1:0"
		}
		if err := c.config.resolve(); err == nil || err.Error() != c.want {
			t.Errorf("got error %v, want %s", err, c.want)
		}
	}
	if err := (&Config{}).resolve(); err == nil || err.Error() != "verbs: bind: missing port in address" {
		t.Errorf("without bind: got error %v", err)
	}
}
