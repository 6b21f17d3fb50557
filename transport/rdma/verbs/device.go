package verbs

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
)

// LinkLayer is what a port speaks.
type LinkLayer uint8

// The link layers of a port. Unspecified is what devices have that are no reliable
// connections over either, such as EFA.
const (
	Unspecified LinkLayer = iota
	InfiniBand
	Ethernet // RoCE
)

func (l LinkLayer) String() string {
	return [...]string{"unspecified", "InfiniBand", "Ethernet"}[l]
}

// GIDType is how packets to and from a GID are framed.
type GIDType uint8

// The types of a GID. RoCE v1 stays within a link; v2 is routed, over UDP.
const (
	TypeIB GIDType = iota
	TypeRoCEv1
	TypeRoCEv2
)

func (t GIDType) String() string { return [...]string{"IB", "RoCE v1", "RoCE v2"}[t] }

// Family is what kind of address a GID of RoCE is, the best last.
type Family uint8

// The families of a GID. Two ports that speak have to have the same.
const (
	LinkLocal Family = iota // fe80::/10
	IPv6
	IPv4 // mapped: ::ffff:a.b.c.d
)

func (f Family) String() string { return [...]string{"link-local IPv6", "IPv6", "IPv4"}[f] }

// GID is an entry of the table of addresses of a port.
type GID struct {
	Index  int
	Addr   [16]byte // network order, never all zero
	Type   GIDType
	NetDev string // the network interface it is of, "" where the kernel names none
	Up     bool   // that interface is up
}

// Family is the kind of address.
func (g GID) Family() Family {
	switch a := netip.AddrFrom16(g.Addr); {
	case a.Is4In6():
		return IPv4
	case a.IsLinkLocalUnicast():
		return LinkLocal
	}
	return IPv6
}

// String is the address, as operators know it from ip addr.
func (g GID) String() string { return netip.AddrFrom16(g.Addr).Unmap().String() }

// parseGID reads eight groups of four digits, as sysfs writes them.
func parseGID(s string) (addr [16]byte, err error) {
	b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(s), ":", ""))
	if err != nil || len(b) != len(addr) {
		return addr, fmt.Errorf("gid is %q, want 8 groups of 4 hex digits", s)
	}
	return [16]byte(b), nil
}

// Port is one port of a device.
type Port struct {
	Number int
	State  string // ACTIVE, DOWN, INIT, ARMED, ...
	Link   LinkLayer
	LID    uint16
	Gbps   float64 // of the link; 0: the kernel does not say
	GIDs   []GID   // by index; entries that are empty are left out
}

// Device is an RDMA device of this host.
type Device struct {
	Name   string // of the kernel: mlx5_0
	Driver string // of the kernel: mlx5_core; "" for one in software
	IWARP  bool   // it speaks iWARP, over Ethernet too
	PCI    string // address, such as 0000:17:00.0; "" for one in software
	PF     string // address of the physical function that it is a virtual one of, or ""
	Path   string // from the root complex to the device: pci0000:15/0000:15:01.0/0000:17:00.0
	NUMA   int    // node; -1: none is known
	Ports  []Port // by number
}
