package verbs

import (
	"slices"
	"strings"
	"testing"
)

// The tables of the drivers that are out there.
func TestChooseGIDOfEachDriver(t *testing.T) {
	for _, c := range []struct {
		name string
		gids []string
		down []string // interfaces
		link string
		want int
		why  string
		err  string
	}{
		{name: "mlx5 with IPv4", gids: []string{v1 + "|fe80::b|eth0", v2 + "|fe80::b|eth0", v1 + "|10.1.2.3|eth0", v2 + "|10.1.2.3|eth0"},
			want: 3, why: "GID 3, the best of 4: RoCE v2, IPv4 10.1.2.3 of eth0"},
		{name: "mlx5 with a VLAN and IPv6 before IPv4", gids: []string{v1 + "|fe80::b|eth0", v2 + "|fe80::b|eth0", v2 + "|2001:db8::5|eth0.100", v2 + "|10.1.2.3|eth0.100"},
			want: 3},
		{name: "bnxt_re, all IPv6", gids: []string{v1 + "|fe80::b|ens1", v2 + "|fe80::b|ens1", v1 + "|2001:db8::7|ens1", v2 + "|2001:db8::7|ens1"},
			want: 3, why: "RoCE v2, IPv6 2001:db8::7 of ens1"},
		{name: "bnxt_re, link-local alone", gids: []string{v1 + "|fe80::b|ens1", v2 + "|fe80::b|ens1"}, want: 1},
		{name: "ionic: v2 alone, holes between", gids: []string{v2 + "|fe80::b|benic1p1", "", "", v2 + "|10.4.0.1|benic1p1"}, want: 3},
		{name: "irdma: v2 alone, IPv4 first", gids: []string{v2 + "|10.4.0.1|enp1", v2 + "|fe80::b|enp1"}, want: 0},
		{name: "an old card: v1 alone", gids: []string{v1 + "|fe80::b|eth0", v1 + "|10.1.2.3|eth0"}, want: 1},
		{name: "v2 of a link-local address is before v1 of IPv4", gids: []string{v1 + "|10.1.2.3|eth0", v2 + "|fe80::b|eth0"}, want: 1},
		{name: "rxe over veth, as in the tests", gids: []string{v2 + "|fe80::b|va", v2 + "|10.7.0.1|va"}, want: 1},
		{name: "a bridge of containers on the same port", gids: []string{v2 + "|172.17.0.1|docker0", v2 + "|2001:db8::7|eth0"}, want: 1},
		{name: "nothing but a bridge", gids: []string{v2 + "|172.17.0.1|docker0"}, want: 0},
		{name: "an interface that is down", gids: []string{v2 + "|10.1.2.3|eth0", v1 + "|fe80::b|eth1"}, down: []string{"eth0"}, want: 1},
		{name: "all are down", gids: []string{v2 + "|10.1.2.3|eth0"}, down: []string{"eth0"},
			err: "the interface of its best GID is down: RoCE v2, IPv4 10.1.2.3 of eth0 (down)"},
		{name: "no address yet", gids: []string{"", ""}, err: "its GID table is empty"},
		{name: "InfiniBand", link: "InfiniBand", gids: []string{v1 + "|fe80::2:c903:ab:cdef", v1 + "|fec0::2:c903:ab:cdef"}, want: 0, why: "the first, as always on InfiniBand"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newTree(t)
			for _, g := range c.gids {
				if f := strings.Split(g, "|"); len(f) > 2 {
					state := "up"
					if slices.Contains(c.down, f[2]) {
						state = "down"
					}
					x.net(f[2], state)
				}
			}
			link := "Ethernet"
			if c.link != "" {
				link = c.link
			}
			x.device("d", "driver", "pci0000:00/0000:00:02.0", 0)
			x.port("d", 1, "4: ACTIVE", link, "100 Gb/sec (4X EDR)", c.gids...)
			g, why, err := ChooseGID(&x.devices()[0].Ports[0], -1)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v and error %v, want %q", g, err, c.err)
				}
				return
			}
			if err != nil || g.Index != c.want || !strings.Contains(why, c.why) {
				t.Errorf("got GID %d (%s), error %v; want %d (%s)", g.Index, why, err, c.want, c.why)
			}
		})
	}
}

func names(cs []Choice) (names []string) {
	for _, c := range cs {
		names = append(names, c.Name())
	}
	return names
}

func TestChooseTheFastPortsThatAreActive(t *testing.T) {
	x := twoSockets(t)
	x.device("mlx5_8", "mlx5_core", "pci0000:00/0000:00:03.0", 0)
	x.port("mlx5_8", 1, "1: DOWN", "Ethernet", "400 Gb/sec (4X NDR)", v2+"|10.0.0.8|eth0")
	x.device("efa_0", "efa", "pci0000:00/0000:00:04.0", 0)
	x.port("efa_0", 1, "4: ACTIVE", "Unspecified", "100 Gb/sec (4X EDR)", v1+"|fe80::c")
	chosen, passed, err := Choose(x.devices(), nil)
	if got := names(chosen); err != nil || !slices.Equal(got, []string{"mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"}) {
		t.Errorf("chose %v, error %v", got, err)
	}
	for name, why := range map[string]string{
		"mlx5_8:1": "its state is DOWN, want ACTIVE",
		"mlx5_9:1": "it has 25 Gb/s, and there are ports of 400 Gb/s",
		"efa_0:1":  "its link layer is neither InfiniBand nor Ethernet",
	} {
		if !slices.ContainsFunc(passed, func(p Pass) bool { return p.Name == name && strings.Contains(p.Why, why) }) {
			t.Errorf("%s is not passed over because %q: %v", name, why, passed)
		}
	}
}

// An explicit choice wins, in its order, and one that cannot be had is an error that
// says what there is.
func TestPicksWin(t *testing.T) {
	x := twoSockets(t)
	devices := x.devices()
	picks := func(texts ...string) (ps []Pick) {
		for _, text := range texts {
			p, err := ParsePick(text)
			if err != nil {
				t.Fatal(err)
			}
			ps = append(ps, p)
		}
		return ps
	}
	chosen, passed, err := Choose(devices, picks("mlx5_9", "mlx5_1:1/1"))
	if got := names(chosen); err != nil || !slices.Equal(got, []string{"mlx5_9:1", "mlx5_1:1"}) {
		t.Fatalf("chose %v, error %v", got, err)
	}
	if c := chosen[1]; c.GID.Index != 1 || c.Why != "it was asked for; GID 1 was asked for: RoCE v2, link-local IPv6 fe80::1 of eth1" {
		t.Errorf("got GID %d: %s", c.GID.Index, c.Why)
	}
	if len(passed) != 3 || passed[0] != (Pass{"mlx5_0:1", "other devices were asked for"}) {
		t.Errorf("passed over %v", passed)
	}
	for pick, want := range map[string]string{
		"mlx5_7":     "device mlx5_7: there is none of this name; there are mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_9",
		"mlx5_0:2":   "device mlx5_0: it has no port 2, it has 1",
		"mlx5_0:1/9": "device mlx5_0:1: its GID table has no entry 9; it has 0, 1, 2, 3",
	} {
		if _, _, err := Choose(devices, picks(pick)); err == nil || err.Error() != want {
			t.Errorf("%s: got error %v, want %s", pick, err, want)
		}
	}
	if _, _, err := Choose(devices, picks("mlx5_0", "mlx5_0:1")); err == nil || !strings.Contains(err.Error(), "named twice") {
		t.Errorf("got error %v, want one of a port that is named twice", err)
	}
	if _, _, err := Choose(nil, picks("mlx5_0")); err == nil || !strings.Contains(err.Error(), "there is no RDMA device on this host") {
		t.Errorf("got error %v", err)
	}
}

func TestParsePick(t *testing.T) {
	for text, want := range map[string]Pick{
		"mlx5_0": {"mlx5_0", 0, -1}, "rxe0:1": {"rxe0", 1, -1}, "bnxt_re0:2/11": {"bnxt_re0", 2, 11},
	} {
		if got, err := ParsePick(text); err != nil || got != want {
			t.Errorf("%q: got %+v, error %v", text, got, err)
		}
	}
	for _, text := range []string{"", ":1", "a:", "a:0", "a:x", "a:256", "a:1/", "a:1/-1", "a:1/256", "a:1/x", "a/3", "a b"} {
		if _, err := ParsePick(text); err == nil || !strings.Contains(err.Error(), "want DEVICE, DEVICE:PORT or DEVICE:PORT/GID") {
			t.Errorf("%q: got error %v", text, err)
		}
	}
}

func TestNear(t *testing.T) {
	x := twoSockets(t)
	chosen, _, err := Choose(x.devices(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		at   Place
		want []string
		why  string
	}{
		{"a GPU under the same switch", Place{PCIPath(x.root, "0000:19:00.0"), 0}, []string{"mlx5_0:1"}, "they share pci0000:15/0000:15:01.0/0000:16:00.0"},
		{"the other one", Place{PCIPath(x.root, "0000:9b:00.0"), 1}, []string{"mlx5_2:1"}, "they share pci0000:97/0000:97:01.0/0000:98:00.0"},
		{"memory of a socket", Place{"", 1}, []string{"mlx5_2:1", "mlx5_3:1"}, "they are of NUMA node 1"},
		{"a GPU with no NIC in its tree", Place{"pci0000:55/0000:55:01.0", 0}, []string{"mlx5_0:1", "mlx5_1:1"}, "they are of NUMA node 0"},
		{"nothing is known", Place{"", -1}, []string{"mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"}, "none is known to be nearer"},
		{"a node without a NIC", Place{"", 7}, []string{"mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"}, "none is known to be nearer"},
	} {
		if got, why := Near(chosen, c.at); !slices.Equal(names(got), c.want) || why != c.why {
			t.Errorf("%s: got %v (%s), want %v (%s)", c.name, names(got), why, c.want, c.why)
		}
	}
}

// A device may have no ports, and one that another pick passed over is not its reason.
func TestPickOfADeviceWithoutPorts(t *testing.T) {
	x := newTree(t)
	x.device("a", "mlx5_core", "pci0000:00/0000:00:02.0", 0)
	x.file("", x.home("a"), "ports/.keep")
	_, _, err := Choose(x.devices(), []Pick{{Device: "a", GID: -1}})
	if err == nil || err.Error() != "device a: none of its ports can be used: it has none" {
		t.Errorf("got error %v", err)
	}
}

// iWARP says Ethernet as RoCE does; what it is is in node_type.
func TestIWARPIsPassedOver(t *testing.T) {
	x := newTree(t)
	x.net("eth0", "up")
	x.device("siw0", "", "", -1)
	x.file("4: RNIC", x.home("siw0"), "node_type")
	x.port("siw0", 1, "4: ACTIVE", "Ethernet", "400 Gb/sec (4X NDR)", v1+"|200::1|eth0")
	x.device("mlx5_0", "mlx5_core", "pci0000:00/0000:00:02.0", 0)
	x.port("mlx5_0", 1, "4: ACTIVE", "Ethernet", "100 Gb/sec (4X EDR)", v2+"|10.0.0.1|eth0")
	chosen, passed, err := Choose(x.devices(), nil)
	if err != nil || !slices.Equal(names(chosen), []string{"mlx5_0:1"}) || len(passed) != 1 || !strings.HasPrefix(passed[0].Why, "it is of iWARP") {
		t.Errorf("chose %v, passed over %v, error %v", names(chosen), passed, err)
	}
}

// A card's virtual functions share its link; in a guest that has nothing else, they are used.
func TestVirtualFunctionsBesideTheirCard(t *testing.T) {
	x := newTree(t)
	x.net("eth0", "up")
	for name, path := range map[string]string{"mlx5_0": "pci0000:00/0000:17:00.0", "mlx5_1": "pci0000:00/0000:17:00.2"} {
		x.device(name, "mlx5_core", path, 0)
		x.port(name, 1, "4: ACTIVE", "Ethernet", "100 Gb/sec (4X EDR)", v2+"|10.0.0.1|eth0")
	}
	x.link("../0000:17:00.0", "devices/pci0000:00/0000:17:00.2/physfn")
	devices := x.devices()
	chosen, passed, err := Choose(devices, nil)
	if err != nil || !slices.Equal(names(chosen), []string{"mlx5_0:1"}) || !slices.Equal(passed, []Pass{{"mlx5_1:1", "it is a virtual function of mlx5_0, which is used"}}) {
		t.Errorf("chose %v, passed over %v, error %v", names(chosen), passed, err)
	}
	if chosen, _, err := Choose(devices[1:], nil); err != nil || !slices.Equal(names(chosen), []string{"mlx5_1:1"}) {
		t.Errorf("chose %v, error %v", names(chosen), err)
	}
	if chosen, _, err := Choose(devices, []Pick{{"mlx5_1", 0, -1}}); err != nil || !slices.Equal(names(chosen), []string{"mlx5_1:1"}) {
		t.Errorf("chose %v, error %v", names(chosen), err)
	}
}
