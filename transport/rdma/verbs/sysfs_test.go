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
