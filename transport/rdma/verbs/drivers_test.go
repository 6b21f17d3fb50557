package verbs

import (
	"slices"
	"strings"
	"testing"

	"kvferry/transport/rdma"
)

// What a host has of each driver that is out there, by what its kernel and its library
// tell: which port and which GID are used, what a queue pair is asked for, and how
// memory is cut into registrations.
func TestEachDriver(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name     string
		device   string // as the kernel names it, or udev
		driver   string // of its PCI function
		netdev   string
		nodeType string
		rate     string
		gids     []string // type and address
		limits   Limits

		gid     int
		queue   queueSize
		request uint64
		regions []uint64 // of 3 GiB
		refused string   // it is not used, and why
	}{
		{
			name: "mlx5", device: "mlx5_0", driver: "mlx5_core", netdev: "ens1np0", rate: "400 Gb/sec (4X NDR)",
			gids:   []string{v1 + "|fe80::b", v2 + "|fe80::b", v1 + "|10.1.2.3", v2 + "|10.1.2.3"},
			limits: Limits{MaxMR: 1<<64 - 1, MaxMRs: 1 << 24, MaxQP: 1 << 17, MaxQPWR: 32768, MaxSGE: 30, MaxCQE: 4194303, MTU: 4096, MaxMTU: 4096, MaxMsg: gib, GIDs: 255},
			gid:    3, queue: queueSize{2048, 256, 8, 682}, request: gib, regions: []uint64{2 * gib, gib},
		},
		{
			name: "mlx5 of a port with an MTU of 1500", device: "rocep23s0f1", driver: "mlx5_core", netdev: "ens1f1np1", rate: "25 Gb/sec (1X EDR)",
			gids:   []string{v2 + "|2001:db8::5", v2 + "|10.1.2.3"},
			limits: Limits{MaxMR: 1<<64 - 1, MaxMRs: 1 << 24, MaxQPWR: 32768, MaxSGE: 30, MaxCQE: 4194303, MTU: 1024, MaxMTU: 4096, MaxMsg: gib, GIDs: 255},
			gid:    1, queue: queueSize{2048, 256, 8, 682}, request: gib, regions: []uint64{2 * gib, gib},
		},
		{
			name: "bnxt_re, all IPv6, registrations of a GiB", device: "bnxt_re0", driver: "bnxt_en", netdev: "ens3f0np0", rate: "400 Gb/sec (4X NDR)",
			gids:   []string{v1 + "|fe80::b", v2 + "|fe80::b", v1 + "|2001:db8::7", v2 + "|2001:db8::7"},
			limits: Limits{MaxMR: gib, MaxMRs: 65536, MaxQP: 65537, MaxQPWR: 65535, MaxSGE: 6, MaxCQE: 65535, MTU: 4096, MaxMTU: 4096, MaxMsg: gib, GIDs: 256},
			gid:    3, queue: queueSize{2048, 256, 6, 682}, request: gib, regions: []uint64{gib, gib, gib},
		},
		{
			name: "ionic: two pieces, v2 alone", device: "ionic_0", driver: "ionic", netdev: "benic1p1", rate: "400 Gb/sec (4X NDR)",
			gids:   []string{v2 + "|fe80::b", "", "", v2 + "|10.4.0.1"},
			limits: Limits{MaxMR: 1 << 40, MaxMRs: 4096, MaxQP: 1000, MaxQPWR: 32767, MaxSGE: 2, MaxCQE: 65535, MTU: 4096, MaxMTU: 4096, MaxMsg: gib, GIDs: 24},
			gid:    3, queue: queueSize{2048, 256, 2, 682}, request: gib, regions: []uint64{2 * gib, gib},
		},
		{
			name: "irdma as RoCE, messages and registrations below 2 GiB", device: "rocep24s0f0", driver: "ice", netdev: "ens2f0", rate: "100 Gb/sec (4X EDR)",
			gids:   []string{v2 + "|10.4.0.1", v2 + "|fe80::b"},
			limits: Limits{MaxMR: 1<<31 - 1, MaxMRs: 1 << 20, MaxQPWR: 4063, MaxSGE: 13, MaxCQE: 1048574, MTU: 4096, MaxMTU: 4096, MaxMsg: 1<<31 - 1, GIDs: 32},
			gid:    0, queue: queueSize{2048, 256, 8, 682}, request: gib, regions: []uint64{1<<31 - 4096, gib + 4096},
		},
		{
			name: "irdma as iWARP", device: "iwp24s0f0", driver: "ice", netdev: "ens2f0", nodeType: "4: RNIC", rate: "100 Gb/sec (4X EDR)",
			gids: []string{v1 + "|200::1"}, refused: "verbs: no port can be used: iwp24s0f0:1: it is of iWARP",
		},
		{
			name: "EFA", device: "efa_0", driver: "efa", rate: "100 Gb/sec (4X EDR)", gids: []string{v1 + "|fe80::c"},
			refused: "verbs: no port can be used: efa_0:1: its link layer is neither InfiniBand nor Ethernet",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newTree(t)
			x.device(c.device, c.driver, "pci0000:15/0000:15:01.0/0000:17:00.0", 0)
			link := "Unspecified"
			if c.netdev != "" {
				link = "Ethernet"
				x.net(c.netdev, "up")
			}
			if c.nodeType != "" {
				x.file(c.nodeType, x.home(c.device), "node_type")
			}
			for i, g := range c.gids {
				if g != "" && c.netdev != "" {
					c.gids[i] = g + "|" + c.netdev
				}
			}
			x.port(c.device, 1, "4: ACTIVE", link, c.rate, c.gids...)
			n := newPartsNic(c.limits)
			var lines []string
			p, err := Listen(Config{Bind: "127.0.0.1:0", Sysfs: x.root, fabric: partsFabric{c.device: n}, Log: func(_ Level, text string) { lines = append(lines, text) }})
			if c.refused != "" {
				if err == nil || !strings.HasPrefix(err.Error(), c.refused) {
					t.Errorf("got error %v, want %q", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.Close(); err != nil || n.live != 0 || n.known != 0 {
					t.Errorf("close: %v; %d queue pairs and %d registrations are left", err, n.live, n.known)
				}
			}()
			if k := p.cards[0]; len(p.cards) != 1 || k.name() != c.device+":1" || k.choice.GID.Index != c.gid || k.choice.Device.Driver != c.driver || !k.ethernet {
				t.Errorf("got %d cards, %+v", len(p.cards), k)
			}
			if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, c.device+":1 is used, MTU ") }) {
				t.Errorf("the log does not say what is used: %q", lines)
			}
			e, err := readEndpoint(p.Endpoint())
			if err != nil || len(e.Rails) != 1 || e.Rails[0].Name != c.device+":1" || GIDType(e.Rails[0].Type) != TypeRoCEv2 {
				t.Errorf("the endpoint is %v, error %v", e, err)
			}
			st, err := (&session{provider: p, state: down}).newStripe(1, p.cards[0], 0)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(n.asked, []queueSize{c.queue}) || st.request != c.request || st.mtu != c.limits.MTU {
				t.Errorf("asked for %+v, requests of %d bytes, MTU %d; want %+v, %d", n.asked, st.request, st.mtu, c.queue, c.request)
			}
			endOf(st)
			n.wins = nil
			m, err := rdma.NewDeviceMemory("driver", rdma.DMABuf{File: devNull(t), Bytes: 3 * gib})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Register(m); err != nil {
				t.Fatal(err)
			}
			var regions []uint64
			for _, w := range n.wins {
				regions = append(regions, w.bytes)
			}
			if !slices.Equal(regions, c.regions) {
				t.Errorf("3 GiB are registered as %v, want %v", regions, c.regions)
			}
		})
	}
}
