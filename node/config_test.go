package node

import (
	"strings"
	"testing"

	"kvferry/transport/rdma/verbs"
)

func TestConfigSaysWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		want   []string
	}{
		"no name":        {Config{}, []string{"name", "0 bytes"}},
		"name":           {Config{Name: "a/b"}, []string{"name", "a/b"}},
		"bind":           {Config{Name: "a", Bind: "here"}, []string{"bind", "here", "host:port"}},
		"bind host":      {Config{Name: "a", Bind: "localhost:1"}, []string{"bind", "localhost", "IP"}},
		"bind port":      {Config{Name: "a", Bind: "127.0.0.1:65536"}, []string{"bind", "65536", "65535"}},
		"actor port":     {Config{Name: "a", Bind: "127.0.0.1:65535"}, []string{"actor port", "65536"}},
		"data port":      {Config{Name: "a", DataPort: -1}, []string{"data port", "-1"}},
		"verbs port":     {Config{Name: "a", VerbsPort: 65536}, []string{"verbs port", "65536"}},
		"verbs devices":  {Config{Name: "a", Providers: []string{"tcp"}, Verbs: verbs.Config{Devices: []verbs.Pick{{Device: "mlx5_0", GID: -1}}}}, []string{"verbs", "devices", "tcp"}},
		"verbs":          {Config{Name: "a", Verbs: verbs.Config{TrafficClass: 256}}, []string{"verbs", "traffic class", "256", "0 to 255"}},
		"cluster":        {Config{Name: "a", Cluster: "ä"}, []string{"cluster", "ä"}},
		"provider":       {Config{Name: "a", Bind: "127.0.0.1:0", Providers: []string{"tcp", "ucx"}}, []string{"providers", "ucx", "shm, verbs, tcp"}},
		"provider twice": {Config{Name: "a", Bind: "127.0.0.1:0", Providers: []string{"tcp", "tcp"}}, []string{"providers", "tcp twice"}},
		"checksum":       {Config{Name: "a", Bind: "127.0.0.1:0", Checksum: "md5"}, []string{"checksum", "md5", "sampled"}},
		"nothing to say": {Config{Name: "a", Bind: "127.0.0.1:0"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.config.resolve()
			if c.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error is %q, want %q in it", err, part)
				}
			}
		})
	}
}

func TestConfigFillsInPorts(t *testing.T) {
	c, err := Config{Name: "a", Bind: "[::1]:7000"}.resolve()
	if err != nil {
		t.Fatal(err)
	}
	if c.ActorPort != 7001 || c.DataPort != 7002 || c.VerbsPort != 7003 || c.Advertise != "::1" || c.advertisedHost() != "::1" {
		t.Errorf("got ports %d and %d, advertise %q", c.ActorPort, c.DataPort, c.Advertise)
	}
	c, err = Config{Name: "a", Bind: "127.0.0.1:0", Advertise: "10.0.0.1:99"}.resolve()
	if err != nil {
		t.Fatal(err)
	}
	if c.ActorPort != 0 || c.DataPort != 0 || c.advertisedHost() != "10.0.0.1" {
		t.Errorf("got ports %d and %d, advertised host %q", c.ActorPort, c.DataPort, c.advertisedHost())
	}
}
