package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Pick names a port, and perhaps a GID, by hand: it wins over every choice.
type Pick struct {
	Device string
	Port   int // 0: each that is active
	GID    int // index; -1: chosen
}

// maxGID is the last entry of a table that a queue pair can name: it has 8 bits for it.
const maxGID = 255

// ParsePick reads DEVICE, DEVICE:PORT or DEVICE:PORT/GID: mlx5_0, mlx5_0:1, mlx5_0:1/3.
func ParsePick(s string) (Pick, error) {
	p := Pick{GID: -1}
	wrong := func(what string) (Pick, error) {
		return Pick{}, fmt.Errorf("device is %q: %s; want DEVICE, DEVICE:PORT or DEVICE:PORT/GID, such as mlx5_0:1/3", s, what)
	}
	name, port, hasPort := strings.Cut(s, ":")
	if p.Device = name; name == "" || strings.ContainsAny(name, "/ ") {
		return wrong("it has no name of a device")
	}
	if !hasPort {
		return p, nil
	}
	port, gid, hasGID := strings.Cut(port, "/")
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 255 {
		return wrong("the port is not a number from 1 to 255")
	}
	p.Port = n
	if !hasGID {
		return p, nil
	}
	if p.GID, err = strconv.Atoi(gid); err != nil || p.GID < 0 || p.GID > maxGID {
		return wrong("the GID is not an index from 0 to 255")
	}
	return p, nil
}

// Choice is a port that is used, with the address that it uses.
type Choice struct {
	Device *Device
	Port   *Port
	GID    GID
	Why    string // for people
}

// Name is the port as ParsePick reads it.
func (c Choice) Name() string { return fmt.Sprintf("%s:%d", c.Device.Name, c.Port.Number) }

// Pass is a port that is not used, and why.
type Pass struct {
	Name string
	Why  string
}

// Choose says which ports of a host are used: those that picks name, in their order;
// without picks, all that are active, of the fastest rate that is there: a slow port
// for management beside fast ones would take a stripe and hold up the others. Virtual
// functions are not used beside the physical one that is their card. An error
// is a pick that cannot be had; without picks there is none, and perhaps no choice.
func Choose(devices []Device, picks []Pick) (chosen []Choice, passed []Pass, err error) {
	if len(picks) > 0 {
		return choosePicks(devices, picks)
	}
	for i := range devices {
		for j := range devices[i].Ports {
			c, err := choosePort(&devices[i], &devices[i].Ports[j], -1)
			if err != nil {
				passed = append(passed, Pass{Name: c.Name(), Why: err.Error()})
				continue
			}
			chosen = append(chosen, c)
		}
	}
	// Functions of one card share its link: a second stripe over it gains nothing.
	all := chosen
	chosen = slices.DeleteFunc(slices.Clone(all), func(c Choice) bool {
		i := slices.IndexFunc(all, func(of Choice) bool { return c.Device.PF != "" && of.Device.PCI == c.Device.PF })
		if i >= 0 {
			passed = append(passed, Pass{Name: c.Name(), Why: fmt.Sprintf("it is a virtual function of %s, which is used", all[i].Device.Name)})
		}
		return i >= 0
	})
	best := 0.0
	for _, c := range chosen {
		best = max(best, c.Port.Gbps)
	}
	fast := chosen[:0:0]
	for _, c := range chosen {
		if c.Port.Gbps > 0 && c.Port.Gbps < best {
			passed = append(passed, Pass{Name: c.Name(), Why: fmt.Sprintf("it has %g Gb/s, and there are ports of %g Gb/s", c.Port.Gbps, best)})
			continue
		}
		fast = append(fast, c)
	}
	return fast, passed, nil
}

func choosePicks(devices []Device, picks []Pick) (chosen []Choice, passed []Pass, err error) {
	used := map[*Port]bool{}
	for _, p := range picks {
		i := slices.IndexFunc(devices, func(d Device) bool { return d.Name == p.Device })
		if i < 0 {
			return nil, nil, fmt.Errorf("device %s: there is none of this name; there %s", p.Device, listed(devices))
		}
		d, found, why := &devices[i], false, "it has none"
		for j := range d.Ports {
			port := &d.Ports[j]
			if p.Port != 0 && port.Number != p.Port {
				continue
			}
			c, err := choosePort(d, port, p.GID)
			switch {
			case err != nil && p.Port != 0:
				return nil, nil, fmt.Errorf("device %s: %w", c.Name(), err)
			case err != nil:
				why = err.Error()
				passed = append(passed, Pass{Name: c.Name(), Why: why})
				continue
			case used[port]:
				return nil, nil, fmt.Errorf("device %s: it is named twice", c.Name())
			}
			c.Why = "it was asked for; " + c.Why
			used[port], found = true, true
			chosen = append(chosen, c)
		}
		switch {
		case found:
		case p.Port != 0:
			return nil, nil, fmt.Errorf("device %s: it has no port %d, it has %d", p.Device, p.Port, len(d.Ports))
		default:
			return nil, nil, fmt.Errorf("device %s: none of its ports can be used: %s", p.Device, why)
		}
	}
	for i := range devices {
		for j := range devices[i].Ports {
			port := &devices[i].Ports[j]
			name := Choice{Device: &devices[i], Port: port}.Name()
			known := slices.ContainsFunc(passed, func(p Pass) bool { return p.Name == name })
			if !used[port] && !known {
				passed = append(passed, Pass{Name: name, Why: "other devices were asked for"})
			}
		}
	}
	return chosen, passed, nil
}

func listed(devices []Device) string {
	if len(devices) == 0 {
		return "is no RDMA device on this host"
	}
	names := make([]string, len(devices))
	for i := range devices {
		names[i] = devices[i].Name
	}
	return "are " + strings.Join(names, ", ")
}

// choosePort says which address a port uses, or why it cannot be used.
func choosePort(d *Device, p *Port, index int) (Choice, error) {
	c := Choice{Device: d, Port: p}
	switch {
	case p.State != "ACTIVE":
		return c, fmt.Errorf("its state is %s, want ACTIVE", p.State)
	case d.IWARP:
		return c, errors.New("it is of iWARP, which connects in another way and has no write with immediate data; want InfiniBand or RoCE (irdma: set it to RoCE v2)")
	case p.Link == Unspecified:
		return c, errors.New("its link layer is neither InfiniBand nor Ethernet: it has no reliable connections (EFA is such a device)")
	}
	g, why, err := ChooseGID(p, index)
	c.GID, c.Why = g, why
	return c, err
}

// ChooseGID says which entry of a port's table is used: the one at index, or with -1
// the best. On InfiniBand that is the first. On RoCE, in this order: one whose interface
// is up; v2, which is routed; not of a container or a bridge, whose addresses other
// hosts cannot reach; IPv4, then IPv6, then link-local; the lowest index.
func ChooseGID(p *Port, index int) (GID, string, error) {
	if len(p.GIDs) == 0 {
		return GID{}, "", errors.New("its GID table is empty: on RoCE, give its network interface an address")
	}
	if index >= 0 {
		for _, g := range p.GIDs {
			if g.Index == index {
				return g, fmt.Sprintf("GID %d was asked for: %s", index, describe(g)), nil
			}
		}
		return GID{}, "", fmt.Errorf("its GID table has no entry %d; it has %s", index, indices(p.GIDs))
	}
	if p.Link == InfiniBand {
		g := p.GIDs[0]
		return g, fmt.Sprintf("GID %d, the first, as always on InfiniBand", g.Index), nil
	}
	best := slices.MinFunc(p.GIDs, func(a, b GID) int {
		return cmp.Or(
			first(a.NetDev != "" && a.Up, b.NetDev != "" && b.Up),
			first(a.Type == TypeRoCEv2, b.Type == TypeRoCEv2),
			first(!virtual(a.NetDev), !virtual(b.NetDev)),
			cmp.Compare(b.Family(), a.Family()),
			cmp.Compare(a.Index, b.Index),
		)
	})
	if best.NetDev != "" && !best.Up {
		return GID{}, "", fmt.Errorf("the interface of its best GID is down: %s", describe(best))
	}
	return best, fmt.Sprintf("GID %d, the best of %d: %s", best.Index, len(p.GIDs), describe(best)), nil
}

// first orders what is true before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// virtualPrefixes begin the names of interfaces whose addresses stay on the host.
var virtualPrefixes = []string{"docker", "br-", "virbr", "cni", "cali", "flannel", "cilium", "lxc", "veth", "tunl", "lo"}

func virtual(netdev string) bool {
	return slices.ContainsFunc(virtualPrefixes, func(p string) bool {
		return strings.HasPrefix(netdev, p) && (p != "lo" || netdev == "lo")
	})
}

func describe(g GID) string {
	text := fmt.Sprintf("%s, %s %s", g.Type, g.Family(), g)
	if g.NetDev != "" {
		text += " of " + g.NetDev
		if !g.Up {
			text += " (down)"
		}
	}
	return text
}

func indices(gids []GID) string {
	names := make([]string, len(gids))
	for i, g := range gids {
		names[i] = strconv.Itoa(g.Index)
	}
	return strings.Join(names, ", ")
}

// Place is where an engine's memory is, such as a GPU.
type Place struct {
	Path string // as Device.Path; "" for memory of the host
	NUMA int    // node; -1: not known
}

// Near is the choices that are as near as any to a place, in their order, and why:
// those that share most of the way from the root complex; without such a way, those of
// the NUMA node; else all.
func Near(choices []Choice, p Place) ([]Choice, string) {
	shared := make([]int, len(choices))
	most := 0
	for i, c := range choices {
		shared[i] = sharedPath(c.Device.Path, p.Path)
		most = max(most, shared[i])
	}
	pick := func(which func(i int) bool) (near []Choice) {
		for i, c := range choices {
			if which(i) {
				near = append(near, c)
			}
		}
		return near
	}
	if most > 0 {
		way := strings.Join(strings.Split(p.Path, "/")[:most], "/")
		return pick(func(i int) bool { return shared[i] == most }), "they share " + way
	}
	if p.NUMA >= 0 {
		if near := pick(func(i int) bool { return choices[i].Device.NUMA == p.NUMA }); len(near) > 0 {
			return near, fmt.Sprintf("they are of NUMA node %d", p.NUMA)
		}
	}
	return choices, "none is known to be nearer"
}

// sharedPath is how many steps from the root complex two devices have in common.
func sharedPath(a, b string) int {
	if a == "" || b == "" {
		return 0
	}
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	n := 0
	for n < len(x) && n < len(y) && x[n] == y[n] {
		n++
	}
	return n
}
