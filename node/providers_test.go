package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"kvferry/transport/rdma/verbs"
)

// sysfsOf is a tree of sysfs with an active RoCE port of mlx5_0, or without any.
func sysfsOf(t *testing.T, device bool) string {
	t.Helper()
	root := t.TempDir()
	if !device {
		return root
	}
	port := filepath.Join(root, "class/infiniband/mlx5_0/ports/1")
	for name, text := range map[string]string{
		"state": "4: ACTIVE", "link_layer": "Ethernet", "rate": "400 Gb/sec (4X NDR)", "lid": "0x0",
		"gids/0": "0000:0000:0000:0000:0000:ffff:0a00:0001", "gid_attrs/types/0": "RoCE v2",
	} {
		name = filepath.Join(port, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Most hosts have no RDMA, and need not hear of it. One that has devices and cannot use
// them is told why, and goes on without; what was asked for by name is not gone without.
func TestProvidersOfAHost(t *testing.T) {
	absent := []verbs.Pick{{Device: "mlx5_9", GID: -1}}
	for name, c := range map[string]struct {
		device  bool
		names   []string
		devices []verbs.Pick
		want    []string
		warning string
		err     string
	}{
		"no device":                          {false, nil, nil, []string{"shm", "tcp"}, "", ""},
		"a device that cannot be used":       {true, nil, nil, []string{"shm", "tcp"}, "verbs: ", ""},
		"no device, verbs among others":      {false, []string{"verbs", "tcp"}, nil, []string{"tcp"}, "no RDMA device", ""},
		"no device, verbs alone":             {false, []string{"verbs"}, nil, nil, "no RDMA device", "provider verbs: verbs: there is no RDMA device on this host"},
		"a device by name that is not there": {true, nil, absent, nil, "", "device mlx5_9: there is none of this name; there are mlx5_0"},
		"a device by name, of none":          {false, nil, absent, nil, "", "device mlx5_9: there is none of this name; there is no RDMA device on this host"},
	} {
		t.Run(name, func(t *testing.T) {
			core, logs := observer.New(zap.InfoLevel)
			config := Config{Name: "a", Bind: "127.0.0.1:0", Providers: c.names, Log: zap.New(core)}
			config.Verbs.Sysfs, config.Verbs.Devices = sysfsOf(t, c.device), c.devices
			resolved, err := config.resolve()
			if err != nil {
				t.Fatal(err)
			}
			providers, err := (&Node{config: resolved}).providers()
			var got []string
			for _, p := range providers {
				got = append(got, p.Name())
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
			if !slices.Equal(got, c.want) || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %v and error %v, want %v and %q", got, err, c.want, c.err)
			}
			var warned []string
			for _, e := range logs.FilterLevelExact(zap.WarnLevel).All() {
				warned = append(warned, e.ContextMap()["error"].(string))
			}
			if len(warned) > 1 || (len(warned) == 1) != (c.warning != "") || len(warned) == 1 && !strings.Contains(warned[0], c.warning) {
				t.Errorf("warned %q, want %q", warned, c.warning)
			}
		})
	}
}
