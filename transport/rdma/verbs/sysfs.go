package verbs

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Devices reads the RDMA devices of a host from sysfs, which is at root: "/sys". No
// device is no error. What cannot be read of a device is an error that names the file.
func Devices(root string) ([]Device, error) {
	dir := filepath.Join(root, "class", "infiniband")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the kernel has no RDMA, or none was ever loaded
	}
	if err != nil {
		return nil, fmt.Errorf("verbs: list devices: %w", err)
	}
	var devices []Device
	for _, e := range entries { // by name
		d, err := readDevice(root, filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it went away meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("verbs: device %s: %w", e.Name(), err)
		}
		devices = append(devices, d)
	}
	return devices, nil
}

func readDevice(root, dir string) (Device, error) {
	d := Device{Name: filepath.Base(dir), NUMA: -1}
	if real, err := filepath.EvalSymlinks(filepath.Join(dir, "device")); err == nil {
		d.Path, d.PCI = pciPath(root, real)
		if d.Path != "" {
			real = filepath.Join(root, "bus", "pci", "devices", d.PCI) // a part of a function has neither of its own
			if function, err := os.Readlink(filepath.Join(real, "physfn")); err == nil {
				d.PF = filepath.Base(function)
			}
		}
		if driver, err := os.Readlink(filepath.Join(real, "driver")); err == nil {
			d.Driver = filepath.Base(driver)
		}
		d.NUMA = nodeOf(real)
	}
	kind, _ := read(dir, "node_type")
	_, kind, _ = strings.Cut(kind, ":")
	d.IWARP = strings.TrimSpace(kind) == "RNIC"
	ports, err := os.ReadDir(filepath.Join(dir, "ports"))
	if err != nil {
		return d, err
	}
	for _, e := range ports {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, err := readPort(root, filepath.Join(dir, "ports", e.Name()), n)
		if err != nil {
			return d, fmt.Errorf("port %d: %w", n, err)
		}
		d.Ports = append(d.Ports, p)
	}
	slices.SortFunc(d.Ports, func(a, b Port) int { return a.Number - b.Number })
	return d, nil
}

// pciPath is the way from the root complex to a device, and the address of its function.
// Some hosts have the root complex below another bus (Azure: VMBUS, Arm: platform), and
// parts of a function (mlx5_core.sf.4) are below it: neither is of the way.
func pciPath(root, real string) (path, address string) {
	base, err := filepath.EvalSymlinks(root)
	if err != nil {
		base = root
	}
	path, ok := strings.CutPrefix(real, filepath.Join(base, "devices")+string(filepath.Separator))
	if !ok {
		return "", ""
	}
	steps := strings.Split(path, "/")
	start := slices.IndexFunc(steps, func(s string) bool {
		domain, bus, ok := strings.Cut(strings.TrimPrefix(s, "pci"), ":")
		return ok && strings.HasPrefix(s, "pci") && isHex(domain) && isHex(bus)
	})
	if start < 0 {
		return "", ""
	}
	end := len(steps)
	for end > start && pciAddress(steps[end-1]) != steps[end-1] {
		end--
	}
	if end == start {
		return "", ""
	}
	return strings.Join(steps[start:end], "/"), steps[end-1]
}

// pciAddress is an address as sysfs writes it (0000:3b:00.0), of one as lspci (3b:00.0)
// or nvidia-smi (00000000:3B:00.0) does. "" if it is none.
func pciAddress(s string) string {
	parts := strings.Split(s, ":")
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	if len(parts) != 3 {
		return ""
	}
	device, function, _ := strings.Cut(parts[2], ".")
	var n [4]uint64
	for i, text := range []string{parts[0], parts[1], device, function} {
		var err error
		if n[i], err = strconv.ParseUint(text, 16, 32); err != nil {
			return ""
		}
	}
	if n[1] > 0xff || n[2] > 0x1f || n[3] > 7 {
		return ""
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3])
}

func isHex(s string) bool {
	_, err := strconv.ParseUint(s, 16, 32)
	return err == nil
}

// PCIPath is the way from the root complex to the device of an address, such as a
// GPU's, for Near. "" where there is none.
func PCIPath(root, address string) string {
	real, err := filepath.EvalSymlinks(filepath.Join(root, "bus", "pci", "devices", pciAddress(address)))
	if err != nil {
		return ""
	}
	path, _ := pciPath(root, real)
	return path
}

func readPort(root, dir string, number int) (Port, error) {
	p := Port{Number: number}
	state, err := read(dir, "state") // "4: ACTIVE"
	if err != nil {
		return p, err
	}
	_, name, _ := strings.Cut(state, ":")
	p.State = strings.TrimSpace(name)
	link, err := read(dir, "link_layer")
	if err != nil {
		return p, err
	}
	switch link {
	case "InfiniBand":
		p.Link = InfiniBand
	case "Ethernet":
		p.Link = Ethernet
	}
	if text, err := read(dir, "lid"); err == nil {
		if lid, err := strconv.ParseUint(text, 0, 16); err == nil {
			p.LID = uint16(lid)
		}
	}
	if text, err := read(dir, "rate"); err == nil { // "100 Gb/sec (4X EDR)"
		number, _, _ := strings.Cut(text, " ")
		if rate, err := strconv.ParseFloat(number, 64); err == nil && rate >= 0 && !math.IsInf(rate, 1) {
			p.Gbps = rate
		}
	}
	p.GIDs, err = readGIDs(root, dir, p.Link)
	return p, err
}

func readGIDs(root, dir string, link LinkLayer) ([]GID, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "gids"))
	if err != nil {
		return nil, err
	}
	var gids []GID
	for _, e := range entries {
		index, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := read(filepath.Join(dir, "gids"), e.Name())
		if err != nil {
			continue // the kernel refuses to read entries that are empty
		}
		g := GID{Index: index}
		if g.Addr, err = parseGID(text); err != nil {
			return nil, fmt.Errorf("gids/%d: %w", index, err)
		}
		if g.Addr == ([16]byte{}) {
			continue
		}
		attrs := filepath.Join(dir, "gid_attrs")
		kind, _ := read(filepath.Join(attrs, "types"), e.Name()) // old kernels have none
		switch {
		case link != Ethernet:
			g.Type = TypeIB
		case kind == "RoCE v2":
			g.Type = TypeRoCEv2
		default: // "IB/RoCE v1"
			g.Type = TypeRoCEv1
		}
		if g.NetDev, err = read(filepath.Join(attrs, "ndevs"), e.Name()); err == nil {
			state, _ := read(filepath.Join(root, "class", "net", g.NetDev), "operstate")
			g.Up = state == "up" || state == "unknown" // unknown: interfaces that do not tell, such as dummies
		}
		gids = append(gids, g)
	}
	slices.SortFunc(gids, func(a, b GID) int { return a.Index - b.Index })
	return gids, nil
}

// read is the text of a file of sysfs, without the newline.
func read(dir, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(b)), err
}

// PCINode is the NUMA node of the device of an address; -1: it is not known.
func PCINode(root, address string) int {
	return nodeOf(filepath.Join(root, "bus", "pci", "devices", pciAddress(address)))
}

func nodeOf(dir string) int {
	text, err := read(dir, "numa_node")
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return -1
	}
	return n
}
