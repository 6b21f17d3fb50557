package cluster

import (
	"encoding/base64"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestConfigNamesTheFieldThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(*Config)
	}{
		{"name", func(c *Config) { c.Name = "" }},
		{"address", func(c *Config) { c.Address = "nowhere" }},
		{"address", func(c *Config) { c.Address = "[::]:1" }},
		{"label", func(c *Config) { c.Label = "a b" }},
		{"protocol versions", func(c *Config) { c.VersionMin, c.VersionMax = 3, 2 }},
		{"key", func(c *Config) { c.Key = make([]byte, 20) }},
		{"seed", func(c *Config) { c.Seeds = []string{"a:b:c:d/"} }},
		{"seed", func(c *Config) { c.Seeds = []string{""} }},
		{"probe timeout", func(c *Config) { c.Timing.ProbeTimeout = time.Second }},
		{"rejoin", func(c *Config) { c.Timing.Rejoin = -1 }},
		{"suspicion mult", func(c *Config) { c.Timing.SuspicionMult = -1 }},
	} {
		config := Config{Name: "n", Address: "127.0.0.1:1"}
		c.change(&config)
		if _, err := config.resolve(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want an error about %q", err, c.want)
		}
	}
}

func TestSeedsGetTheDefaultPort(t *testing.T) {
	c, err := Config{Name: "n", Address: "h:1", Seeds: []string{"a", "b:9", "10.0.0.1", "fd00::1", "[fd00::2]", "[fd00::3]:9"}}.resolve()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(c.Seeds, " "); got != "a:7946 b:9 10.0.0.1:7946 [fd00::1]:7946 [fd00::2]:7946 [fd00::3]:9" {
		t.Errorf("got %s", got)
	}
}

func addresses(all ...string) func() ([]net.Addr, error) {
	return func() ([]net.Addr, error) {
		var out []net.Addr
		for _, a := range all {
			ip, mask, err := net.ParseCIDR(a)
			if err != nil {
				return nil, err
			}
			out = append(out, &net.IPNet{IP: ip, Mask: mask.Mask})
		}
		return out, nil
	}
}

func TestAdvertiseIsNeverAWildcard(t *testing.T) {
	private := addresses("127.0.0.1/8", "8.8.8.8/24", "fd00::7/64", "10.1.2.3/16")
	for _, c := range []struct {
		bind, advertise string
		local           func() ([]net.Addr, error)
		tell            string
		port            int
		chosen          bool
		err             string
	}{
		{bind: "127.0.0.1:7946", tell: "127.0.0.1", port: 7946},
		{bind: "0.0.0.0:7946", local: private, tell: "10.1.2.3", port: 7946, chosen: true},
		{bind: "[::]:7946", local: addresses("fd00::7/64"), tell: "fd00::7", port: 7946, chosen: true},
		{bind: "0.0.0.0:7946", local: addresses("127.0.0.1/8", "8.8.8.8/24"), err: "no private address"},
		{bind: "0.0.0.0:7946", advertise: "8.8.8.8", tell: "8.8.8.8", port: 7946},
		{bind: "0.0.0.0:0", advertise: "8.8.8.8:99", tell: "8.8.8.8", port: 99},
		{bind: "[::]:7946", advertise: "fd00::1", tell: "fd00::1", port: 7946},
		{bind: "[::]:7946", advertise: "[fd00::1]:99", tell: "fd00::1", port: 99},
		{bind: "0.0.0.0:7946", advertise: "0.0.0.0", local: private, err: "advertise"},
		{bind: "0.0.0.0:7946", advertise: "node-1", err: "advertise"},
		{bind: "localhost:7946", err: "bind"},
		{bind: "127.0.0.1", err: "bind"},
	} {
		e, err := Config{Bind: c.bind, Advertise: c.advertise}.endpoint(c.local)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v: got %v", c, err)
			}
			continue
		}
		if err != nil || e.tell.String() != c.tell || e.tellPort != c.port || e.chosen != c.chosen {
			t.Errorf("%+v: got %+v, %v", c, e, err)
		}
	}
}

func TestKeyIsReadOrSaidWhyNot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	for _, n := range []int{16, 24, 32} {
		text := "\n " + base64.StdEncoding.EncodeToString(make([]byte, n)) + " \n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if key, err := ReadKey(file); err != nil || len(key) != n {
			t.Errorf("got %d bytes, %v", len(key), err)
		}
	}
	for text, want := range map[string]string{
		"AAAA":           "got 3 bytes",
		"not base64 !!!": "not base64",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadKey(file); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "!!!") {
			t.Errorf("got %v", err)
		}
	}
	if _, err := ReadKey(file + "none"); err == nil {
		t.Error("got no error for a file that is not there")
	}
}

func TestGossipsLogKeepsItsLevels(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	log := bridge(zap.New(core))
	for _, line := range []string{"[DEBUG] memberlist: a", "[INFO] memberlist: b", "[WARN] memberlist: c", "[ERR] memberlist: d", "[ERR] e", "plain"} {
		log.Print(line)
	}
	var got []string
	for _, e := range logs.All() {
		got = append(got, e.Level.String()+" "+e.Message)
	}
	if s := strings.Join(got, ","); s != "debug a,info b,warn c,error d,error e,info plain" {
		t.Errorf("got %s", s)
	}
}

func TestNewIncarnationsAreHigherWithTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewIncarnation()
		time.Sleep(time.Microsecond) // virtual
		if b := NewIncarnation(); b <= a {
			t.Errorf("got %x after %x", b, a)
		}
	})
}
