package verbs

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree writes what sysfs would have. Names and forms of files are those of Linux 6.1
// and of the driver that a device has.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T) *tree { return &tree{t, t.TempDir()} }

func (x *tree) file(text string, path ...string) {
	x.t.Helper()
	name := filepath.Join(append([]string{x.root}, path...)...)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		x.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text+"\n"), 0o644); err != nil {
		x.t.Fatal(err)
	}
}

func (x *tree) link(target string, path ...string) {
	x.t.Helper()
	name := filepath.Join(append([]string{x.root}, path...)...)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		x.t.Fatal(err)
	}
	if err := os.Symlink(target, name); err != nil {
		x.t.Fatal(err)
	}
}

// net makes a network interface.
func (x *tree) net(name, operstate string) { x.file(operstate, "class/net", name, "operstate") }

// device makes a device: driver and path are "" for one in software.
func (x *tree) device(name, driver, path string, numa int) {
	real := filepath.Join("devices", path)
	if path == "" {
		real = "devices/virtual"
	}
	home := filepath.Join(real, "infiniband", name)
	x.file("1: CA", home, "node_type")
	x.link(filepath.Join("../..", home), "class/infiniband", name)
	if path == "" {
		return
	}
	x.file(fmt.Sprint(numa), real, "numa_node")
	x.link(filepath.Join(x.root, "bus/pci/drivers", driver), real, "driver")
	x.link("../..", home, "device")
	x.link(filepath.Join(x.root, real), "bus/pci/devices", filepath.Base(path))
}

func (x *tree) home(name string) string {
	home, err := filepath.EvalSymlinks(filepath.Join(x.root, "class/infiniband", name))
	if err != nil {
		x.t.Fatal(err)
	}
	rel, err := filepath.Rel(x.root, home)
	if err != nil {
		x.t.Fatal(err)
	}
	return rel
}

// port makes a port of a device; gids are "TYPE ADDRESS NETDEV" each, "" for an entry
// that is empty.
func (x *tree) port(device string, number int, state, link, rate string, gids ...string) {
	dir := filepath.Join(x.home(device), "ports", fmt.Sprint(number))
	x.file(state, dir, "state")
	x.file(link, dir, "link_layer")
	x.file(rate, dir, "rate")
	x.file("0x7", dir, "lid")
	for i, g := range gids {
		n := fmt.Sprint(i)
		if g == "" {
			x.file("0000:0000:0000:0000:0000:0000:0000:0000", dir, "gids", n)
			x.file("", dir, "gid_attrs/types", n) // the kernel answers EINVAL
			continue
		}
		f := strings.Split(g, "|")
		x.file(sysGID(f[1]), dir, "gids", n)
		x.file(f[0], dir, "gid_attrs/types", n)
		if len(f) > 2 {
			x.file(f[2], dir, "gid_attrs/ndevs", n)
		}
	}
}

// sysGID is an address as sysfs writes a GID.
func sysGID(addr string) string {
	a := netip.MustParseAddr(addr).As16()
	digits := hex.EncodeToString(a[:])
	var groups []string
	for i := 0; i < len(digits); i += 4 {
		groups = append(groups, digits[i:i+4])
	}
	return strings.Join(groups, ":")
}

func (x *tree) devices() []Device {
	x.t.Helper()
	d, err := Devices(x.root)
	if err != nil {
		x.t.Fatal(err)
	}
	return d
}

const (
	v1 = "IB/RoCE v1"
	v2 = "RoCE v2"
)

// twoSockets is a host with four fast NICs on two sockets, one slow one, and a GPU
// beside each of two of the fast ones.
func twoSockets(t *testing.T) *tree {
	x := newTree(t)
	for i, path := range []string{
		"pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0",
		"pci0000:37/0000:37:01.0/0000:38:00.0",
		"pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:00.0/0000:9a:00.0",
		"pci0000:b7/0000:b7:01.0/0000:b8:00.0",
	} {
		name, netdev := fmt.Sprintf("mlx5_%d", i), fmt.Sprintf("eth%d", i)
		x.net(netdev, "up")
		x.device(name, "mlx5_core", path, i/2)
		x.port(name, 1, "4: ACTIVE", "Ethernet", "400 Gb/sec (4X NDR)",
			v1+"|fe80::1|"+netdev, v2+"|fe80::1|"+netdev, v1+"|10.0.0.1|"+netdev, v2+"|10.0.0.1|"+netdev)
	}
	x.net("mgmt0", "up")
	x.device("mlx5_9", "mlx5_core", "pci0000:00/0000:00:02.0", 0)
	x.port("mlx5_9", 1, "4: ACTIVE", "Ethernet", "25 Gb/sec (1X EDR)", v2+"|192.168.0.9|mgmt0")
	for i, path := range []string{
		"pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0",
		"pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:01.0/0000:9b:00.0",
	} {
		real := filepath.Join("devices", path)
		x.file(fmt.Sprint(i), real, "numa_node")
		x.link(filepath.Join(x.root, real), "bus/pci/devices", filepath.Base(path))
	}
	return x
}
