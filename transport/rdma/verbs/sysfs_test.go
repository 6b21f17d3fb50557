package verbs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDevicesOfSysfs(t *testing.T) {
	x := twoSockets(t)
	x.net("va", "up")
	x.device("rxe0", "", "", -1)
	x.port("rxe0", 1, "4: ACTIVE", "Ethernet", "2.5 Gb/sec (1X SDR)", v2+"|10.7.0.1|va")
	devices := x.devices()
	if len(devices) != 6 {
		t.Fatalf("got %d devices, want 6", len(devices))
	}
	d := devices[2]
	if d.Name != "mlx5_2" || d.Driver != "mlx5_core" || d.PCI != "0000:9a:00.0" || d.NUMA != 1 ||
		d.Path != "pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:00.0/0000:9a:00.0" {
		t.Errorf("got %+v", d)
	}
	p := d.Ports[0]
	if p.Number != 1 || p.State != "ACTIVE" || p.Link != Ethernet || p.LID != 7 || p.Gbps != 400 || len(p.GIDs) != 4 {
		t.Errorf("got %+v", p)
	}
	if g := p.GIDs[3]; g.Index != 3 || g.Type != TypeRoCEv2 || g.Family() != IPv4 || g.NetDev != "eth2" || !g.Up || g.String() != "10.0.0.1" {
		t.Errorf("got %+v", g)
	}
	soft := devices[5]
	if soft.Name != "rxe0" || soft.PCI != "" || soft.Path != "" || soft.NUMA != -1 || soft.Ports[0].Gbps != 2.5 {
		t.Errorf("got %+v", soft)
	}
}

func TestDevicesOfAHostWithoutRDMA(t *testing.T) {
	if d, err := Devices(t.TempDir()); err != nil || len(d) != 0 {
		t.Errorf("got %v, error %v", d, err)
	}
}

// What is broken is named; a device that goes away while it is read is not broken.
func TestDevicesThatCannotBeRead(t *testing.T) {
	x := newTree(t)
	x.device("a", "mlx5_core", "pci0000:00/0000:00:02.0", 0)
	x.port("a", 1, "4: ACTIVE", "Ethernet", "100 Gb/sec", v2+"|10.0.0.1|eth0")
	x.file("not a gid", x.home("a"), "ports/1/gids/0")
	if _, err := Devices(x.root); err == nil || !strings.Contains(err.Error(), `device a: port 1: gids/0: gid is "not a gid", want 8 groups of 4 hex digits`) {
		t.Errorf("got error %v", err)
	}
	if err := os.RemoveAll(filepath.Join(x.root, x.home("a"), "ports")); err != nil {
		t.Fatal(err)
	}
	if d, err := Devices(x.root); err != nil || len(d) != 0 {
		t.Errorf("got %v, error %v", d, err)
	}
}

// The files of this host, whatever it has.
func TestDevicesOfThisHost(t *testing.T) {
	d, err := Devices("/sys")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d devices", len(d))
}

// Where the root complex is not at the top, and what is below a function.
func TestPCIPaths(t *testing.T) {
	x := newTree(t)
	azure := "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0101/pci0101:00/0101:00:00.0"
	for _, c := range []struct{ name, at, path, address string }{
		{"azure", azure, "pci0101:00/0101:00:00.0", "0101:00:00.0"},
		{"arm", "platform/40000000.pcie/pci0000:40/0000:40:00.0/0000:41:00.0", "pci0000:40/0000:40:00.0/0000:41:00.0", "0000:41:00.0"},
		{"vmd", "pci0000:00/0000:00:0e.0/pci10000:00/10000:00:01.0", "pci0000:00/0000:00:0e.0/pci10000:00/10000:00:01.0", "10000:00:01.0"},
		{"function", "pci0000:15/0000:15:01.0/0000:17:00.1", "pci0000:15/0000:15:01.0/0000:17:00.1", "0000:17:00.1"},
	} {
		x.device(c.name, "mlx5_core", c.at, 1)
		x.port(c.name, 1, "4: ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)", v1+"|fe80::1")
		for _, d := range x.devices() {
			if d.Name == c.name && (d.Path != c.path || d.PCI != c.address || d.NUMA != 1 || d.Driver != "mlx5_core") {
				t.Errorf("%s: got %+v", c.name, d)
			}
		}
		if got := PCIPath(x.root, c.address); got != c.path {
			t.Errorf("%s: got path %q, want %q", c.name, got, c.path)
		}
	}
	// A scalable function is a device below the PCI function that it is a part of.
	real := "devices/pci0000:15/0000:15:01.0/0000:17:00.1/mlx5_core.sf.4"
	x.file("1: CA", real, "infiniband/mlx5_sf/node_type")
	x.link("../..", real, "infiniband/mlx5_sf/device")
	x.link("../../"+real+"/infiniband/mlx5_sf", "class/infiniband/mlx5_sf")
	x.port("mlx5_sf", 1, "4: ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)", v1+"|fe80::1")
	for _, d := range x.devices() {
		if d.Name == "mlx5_sf" && (d.PCI != "0000:17:00.1" || d.Path != "pci0000:15/0000:15:01.0/0000:17:00.1" || d.NUMA != 1) {
			t.Errorf("got %+v", d)
		}
	}
	for _, address := range []string{"00000000:17:00.1", "17:00.1", "0000:17:00.1"} {
		if PCIPath(x.root, address) == "" || PCINode(x.root, address) != 1 {
			t.Errorf("%s is not found", address)
		}
	}
	if got := pciAddress("00010000:3B:1F.7"); got != "10000:3b:1f.7" {
		t.Errorf("got %q", got)
	}
	for _, address := range []string{"", ".", "..", "../0000:17:00.1", "0000:17:00", "0000:17:00.8", "0000:17:20.0", "0000:100:00.0", "0000:17:00.1.1", "-1:0:0.0", "a:b:c:d"} {
		if got := pciAddress(address); got != "" {
			t.Errorf("%s: got %q", address, got)
		}
		if got := PCIPath(x.root, address); got != "" {
			t.Errorf("%s: got path %q", address, got)
		}
	}
}

// A rate that is none is not known; it does not make another port slow.
func TestRatesThatAreNone(t *testing.T) {
	x := newTree(t)
	x.device("a", "mlx5_core", "pci0000:00/0000:00:02.0", 0)
	for _, rate := range []string{"", "Inf Gb/sec", "NaN Gb/sec", "1e999 Gb/sec", "-1 Gb/sec", "fast"} {
		x.port("a", 1, "4: ACTIVE", "InfiniBand", rate, v1+"|fe80::1")
		if got := x.devices()[0].Ports[0].Gbps; got != 0 {
			t.Errorf("%q: got %g", rate, got)
		}
	}
}
