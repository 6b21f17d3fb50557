package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"kvferry/transport/rdma/verbs"
)

// doctorFlags are the flags of doctor.
type doctorFlags struct {
	devices []string
	near    string
	output  string
	sysfs   string
}

func newDoctorCommand() *cobra.Command {
	var f doctorFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Show the RDMA devices of this host, and which are used and why",
		Long: `Doctor shows what RDMA this host has: whether libibverbs can be loaded, the limit of
locked memory, and each port of each device with its state, link, MTU and address,
whether it is used, and why or why not.

Without --device every port is used that is active and as fast as the fastest. On RoCE
its address is, in this order, of an interface that is up; v2, which is routed; not of a
container or a bridge; IPv4, then IPv6, then link-local. With --device those ports are
used, and the address that is named: DEVICE, DEVICE:PORT or DEVICE:PORT/GID.

--near shows which of them an engine would use whose memory is near a PCI device, such
as a GPU (its address), or of a NUMA node (numa:N).

docs/rdma.md says what to set on a host, and what the errors of RDMA mean.`,
		Example: `  kvferry doctor
  kvferry doctor --device mlx5_0 --device mlx5_1:1/3 --near 0000:19:00.0 -o json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return doctor(c.OutOrStdout(), &f, openVerbs) },
	}
	flags := c.Flags()
	flags.StringSliceVar(&f.devices, "device", nil, "port that is used, instead of a choice: DEVICE, DEVICE:PORT or DEVICE:PORT/GID")
	flags.StringVar(&f.near, "near", "", "PCI address, or numa:N")
	flags.StringVarP(&f.output, "output", "o", "text", "text or json")
	flags.StringVar(&f.sysfs, "sysfs", "/sys", "where sysfs is")
	_ = flags.MarkHidden("sysfs")
	return c
}

// limiter asks a device for its limits.
type limiter interface {
	Limits(device string, port int) (verbs.Limits, error)
}

func openVerbs() (limiter, error) { return verbs.Open() }

type doctorPort struct {
	Name     string      `json:"name"` // DEVICE:PORT
	Driver   string      `json:"driver,omitempty"`
	PCI      string      `json:"pci,omitempty"`
	NUMA     int         `json:"numa"` // -1: not known
	State    string      `json:"state"`
	Link     string      `json:"link"`
	Gbps     float64     `json:"gbps"`
	Firmware string      `json:"firmware,omitempty"`
	MTU      int         `json:"mtu,omitempty"`
	Limits   *limitsJSON `json:"limits,omitempty"`
	Error    string      `json:"error,omitempty"` // why there are no limits
	Used     bool        `json:"used"`
	Why      string      `json:"why"`
	GID      *gidJSON    `json:"gid,omitempty"` // that is used
	GIDs     []gidJSON   `json:"gids"`
}

type limitsJSON struct {
	MaxMRBytes uint64 `json:"max_mr_bytes"`
	MaxMRs     int    `json:"max_mrs"`
	MaxQPs     int    `json:"max_qps"`
	MaxQPWR    int    `json:"max_qp_wr"`
	MaxSGE     int    `json:"max_sge"`
	MaxCQE     int    `json:"max_cqe"`
	MaxMsg     uint32 `json:"max_msg_bytes"`
}

type gidJSON struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type"`
	Family string `json:"family,omitempty"` // of RoCE
	NetDev string `json:"netdev,omitempty"`
	Up     bool   `json:"up"`
}

type doctorResult struct {
	Loaded    bool         `json:"libibverbs"`
	LoadError string       `json:"libibverbs_error,omitempty"`
	Memlock   *uint64      `json:"memlock_bytes"` // null: no limit
	Ports     []doctorPort `json:"ports"`
	Used      []string     `json:"used"` // in the order of stripes
	Near      []string     `json:"near,omitempty"`
	NearWhy   string       `json:"near_why,omitempty"`
}

// doctor examines and prints.
func doctor(w io.Writer, f *doctorFlags, open func() (limiter, error)) error {
	if f.output != "text" && f.output != "json" {
		return malformed("--output is %q, want text or json", f.output)
	}
	r, err := examine(f, open)
	if err != nil {
		return err
	}
	if f.output == "json" {
		return json.NewEncoder(w).Encode(r)
	}
	return r.write(w)
}

func examine(f *doctorFlags, open func() (limiter, error)) (*doctorResult, error) {
	var picks []verbs.Pick
	for _, text := range f.devices {
		p, err := verbs.ParsePick(text)
		if err != nil {
			return nil, malformed("--%w", err)
		}
		picks = append(picks, p)
	}
	place, err := placeOf(f)
	if err != nil {
		return nil, err
	}
	devices, err := verbs.Devices(f.sysfs)
	if err != nil {
		return nil, err
	}
	chosen, passed, err := verbs.Choose(devices, picks)
	if err != nil {
		return nil, malformed("--%w", err)
	}
	r := &doctorResult{Ports: []doctorPort{}, Used: []string{}}
	if r.Memlock, err = memlock(); err != nil {
		return nil, err
	}
	lib, err := open()
	if r.Loaded = err == nil; err != nil {
		r.LoadError = err.Error()
	}
	for i := range devices {
		for j := range devices[i].Ports {
			r.Ports = append(r.Ports, examinePort(&devices[i], &devices[i].Ports[j], chosen, passed, lib, r.Loaded))
		}
	}
	for _, c := range chosen {
		r.Used = append(r.Used, c.Name())
	}
	if f.near != "" {
		near, why := verbs.Near(chosen, place)
		r.NearWhy = why
		for _, c := range near {
			r.Near = append(r.Near, c.Name())
		}
	}
	return r, nil
}

// placeOf reads --near.
func placeOf(f *doctorFlags) (verbs.Place, error) {
	none := verbs.Place{NUMA: -1}
	switch number, numa := strings.CutPrefix(f.near, "numa:"); {
	case f.near == "":
		return none, nil
	case numa:
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return none, malformed("--near is %q, want numa:N with N the number of a node, or a PCI address such as 0000:19:00.0", f.near)
		}
		return verbs.Place{NUMA: int(n)}, nil
	}
	path := verbs.PCIPath(f.sysfs, f.near)
	if path == "" {
		return none, malformed("--near is %q: this host has no PCI device of this address; want one such as 0000:19:00.0, or numa:N", f.near)
	}
	return verbs.Place{Path: path, NUMA: verbs.PCINode(f.sysfs, f.near)}, nil
}

// memlock is the limit of locked memory of this process; nil: there is none.
func memlock() (*uint64, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return nil, fmt.Errorf("ask for the limit of locked memory: %w", err)
	}
	if l.Cur == math.MaxUint64 {
		return nil, nil
	}
	return &l.Cur, nil
}

func examinePort(d *verbs.Device, p *verbs.Port, chosen []verbs.Choice, passed []verbs.Pass, lib limiter, loaded bool) doctorPort {
	r := doctorPort{
		Name: fmt.Sprintf("%s:%d", d.Name, p.Number), Driver: d.Driver, PCI: d.PCI, NUMA: d.NUMA,
		State: p.State, Link: p.Link.String(), Gbps: p.Gbps, GIDs: []gidJSON{},
	}
	for _, g := range p.GIDs {
		r.GIDs = append(r.GIDs, gidOf(g))
	}
	for _, c := range chosen {
		if c.Device == d && c.Port == p {
			gid := gidOf(c.GID)
			r.Used, r.Why, r.GID = true, c.Why, &gid
		}
	}
	for _, x := range passed {
		if x.Name == r.Name {
			r.Why = x.Why
		}
	}
	if !loaded {
		return r
	}
	l, err := lib.Limits(d.Name, p.Number)
	if err != nil {
		r.Error = err.Error()
		return r
	}
	r.Firmware, r.MTU = l.Firmware, l.MTU
	r.Limits = &limitsJSON{l.MaxMR, l.MaxMRs, l.MaxQP, l.MaxQPWR, l.MaxSGE, l.MaxCQE, l.MaxMsg}
	return r
}

func gidOf(g verbs.GID) gidJSON {
	j := gidJSON{Index: g.Index, GID: g.String(), Type: g.Type.String(), NetDev: g.NetDev, Up: g.Up}
	if g.Type != verbs.TypeIB {
		j.Family = g.Family().String()
	}
	return j
}

// write prints the result for people.
func (r *doctorResult) write(w io.Writer) error {
	var err error
	say := func(format string, a ...any) {
		_, e := fmt.Fprintf(w, format, a...)
		err = errors.Join(err, e)
	}
	if r.Loaded {
		say("libibverbs: loaded\n")
	} else {
		say("libibverbs: %s\n", strings.TrimPrefix(r.LoadError, "verbs: libibverbs "))
	}
	if r.Memlock == nil {
		say("locked memory: no limit\n")
	} else {
		say("locked memory: at most %s: registered pools are locked, so it has to be more than all of them (ulimit -l, LimitMEMLOCK=)\n", humanBytes(*r.Memlock))
	}
	if len(r.Ports) == 0 {
		say("devices: none\n")
		return err
	}
	say("\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PORT\tDRIVER\tPCI\tNUMA\tSTATE\tLINK\tGB/S\tMTU\tUSED\tWHY")
	for i := range r.Ports {
		p := &r.Ports[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, orDash(p.Driver), orDash(p.PCI), numberOrDash(p.NUMA, p.NUMA >= 0),
			p.State, p.Link, strconv.FormatFloat(p.Gbps/8, 'g', 4, 64), numberOrDash(p.MTU, p.MTU > 0), yesOrNo(p.Used), p.Why)
	}
	err = errors.Join(err, t.Flush())
	for i := range r.Ports {
		if p := &r.Ports[i]; p.Error != "" {
			say("%s: %s\n", p.Name, p.Error)
		}
	}
	if len(r.Used) > 0 {
		say("\nstripes: %s\n", strings.Join(r.Used, ", "))
	} else {
		say("\nno port can be used\n")
	}
	if r.NearWhy != "" {
		say("near: %s: %s\n", strings.Join(r.Near, ", "), r.NearWhy)
	}
	return err
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func numberOrDash(n int, known bool) string {
	if !known {
		return "-"
	}
	return strconv.Itoa(n)
}
