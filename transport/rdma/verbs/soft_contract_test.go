package verbs

import (
	"fmt"
	"testing"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/rdmatest"
)

// softNode starts a provider with devices of a soft fabric: NAME0, NAME1 and so on,
// each with a path of its own.
func softNode(t *testing.T, f *soft, name string, devices int, change ...func(c *Config)) *Provider {
	t.Helper()
	x := softTree(t, name, devices)
	c := Config{Bind: "127.0.0.1:0", Sysfs: x.root, fabric: f, Log: func(_ Level, text string) { t.Log(name, text) }}
	for _, with := range change {
		with(&c)
	}
	p, err := Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func softTree(t *testing.T, name string, devices int) *tree {
	t.Helper()
	x := newTree(t)
	for i := range devices {
		device, netdev := fmt.Sprintf("%s%d", name, i), fmt.Sprintf("eth%d", i)
		x.net(netdev, "up")
		x.device(device, "mlx5_core", fmt.Sprintf("pci0000:%02x/0000:%02x:00.0", i+1, i+1), i)
		x.port(device, 1, "4: ACTIVE", "Ethernet", "400 Gb/sec (4X NDR)", v2+"|"+softAddress(name, i)+"|"+netdev)
	}
	return x
}

func softAddress(name string, device int) string { return fmt.Sprintf("10.%d.%d.1", name[0], device) }

// The contract, with two devices and one, and with devices that hold almost nothing.
func TestContract(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b int
		with func(f *soft)
	}{
		{"two rails and one", 2, 1, func(*soft) {}},
		{"small devices", 1, 2, func(f *soft) {
			f.limit = func(string) Limits {
				l := softLimits
				l.MaxQPWR, l.MaxSGE, l.MaxCQE, l.MaxMR, l.MaxMsg, l.MTU = 128, 1, 100, 3<<20, 1<<20, 1024
				return l
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rdmatest.Run(t, func(t *testing.T) (a, b rdma.Provider) {
				f := newSoft()
				c.with(f)
				return softNode(t, f, "a", c.a), softNode(t, f, "b", c.b)
			})
		})
	}
}
