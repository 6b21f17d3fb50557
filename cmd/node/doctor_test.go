package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"kvferry/transport/rdma/verbs"
)

// hostWithNICs is a sysfs with a fast port, a slow one, and one that is down.
func hostWithNICs(t *testing.T) string {
	root := t.TempDir()
	file := func(path, text string) {
		name := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file("class/net/eth0/operstate", "up")
	for _, d := range []struct{ name, state, rate string }{
		{"mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)"}, {"mlx5_1", "4: ACTIVE", "25 Gb/sec (1X EDR)"}, {"mlx5_2", "1: DOWN", "400 Gb/sec (4X NDR)"},
	} {
		port := "class/infiniband/" + d.name + "/ports/1/"
		file(port+"state", d.state)
		file(port+"link_layer", "Ethernet")
		file(port+"rate", d.rate)
		file(port+"gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001")
		file(port+"gid_attrs/types/0", "RoCE v2")
		file(port+"gid_attrs/ndevs/0", "eth0")
		file(port+"gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0001")
		file(port+"gid_attrs/types/3", "RoCE v2")
		file(port+"gid_attrs/ndevs/3", "eth0")
	}
	return root
}

// fakeLimits answers for mlx5_0 alone.
type fakeLimits struct{}

func (fakeLimits) Limits(device string, port int) (verbs.Limits, error) {
	if device != "mlx5_0" {
		return verbs.Limits{}, &verbs.CallError{Call: "ibv_open_device", Device: device, Err: syscall.EACCES}
	}
	return verbs.Limits{Firmware: "28.39", MTU: 4096, MaxMR: 1 << 40, MaxQPWR: 32768, MaxSGE: 30}, nil
}

func TestDoctor(t *testing.T) {
	root := hostWithNICs(t)
	var out bytes.Buffer
	if err := doctor(&out, &doctorFlags{output: "text", sysfs: root, near: "numa:0"}, func() (limiter, error) { return fakeLimits{}, nil }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"libibverbs: loaded\n",
		"mlx5_0:1  -       -    -     ACTIVE  Ethernet  50     4096  yes   GID 3, the best of 2: RoCE v2, IPv4 10.0.0.1 of eth0\n",
		"mlx5_1:1  -       -    -     ACTIVE  Ethernet  3.125  -     no    it has 25 Gb/s, and there are ports of 400 Gb/s\n",
		"mlx5_2:1  -       -    -     DOWN    Ethernet  50     -     no    its state is DOWN, want ACTIVE\n",
		"mlx5_1:1: verbs: ibv_open_device of mlx5_1: permission denied: this user may not open /dev/infiniband/uverbs*",
		"\nstripes: mlx5_0:1\n", "near: mlx5_0:1: none is known to be nearer\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestDoctorJSON(t *testing.T) {
	root := hostWithNICs(t)
	var out bytes.Buffer
	f := &doctorFlags{output: "json", sysfs: root, devices: []string{"mlx5_1:1/0", "mlx5_0"}}
	if err := doctor(&out, f, func() (limiter, error) { return fakeLimits{}, nil }); err != nil {
		t.Fatal(err)
	}
	var r doctorResult
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if !r.Loaded || !slices.Equal(r.Used, []string{"mlx5_1:1", "mlx5_0:1"}) || len(r.Ports) != 3 {
		t.Fatalf("got %+v", r)
	}
	if p := r.Ports[0]; !p.Used || p.GID.Index != 3 || p.GID.Family != "IPv4" || p.Limits == nil || p.Limits.MaxSGE != 30 || len(p.GIDs) != 2 || p.NUMA != -1 {
		t.Errorf("got %+v", p)
	}
	if p := r.Ports[1]; !p.Used || p.GID.Index != 0 || !strings.HasPrefix(p.Why, "it was asked for; GID 0 was asked for") || p.Error == "" {
		t.Errorf("got %+v", p)
	}
	if p := r.Ports[2]; p.Used || p.Why != "its state is DOWN, want ACTIVE" && p.Why != "other devices were asked for" {
		t.Errorf("got %+v", p)
	}
}

// Without the library all but the limits is there, and the reason.
func TestDoctorWithoutTheLibrary(t *testing.T) {
	var out bytes.Buffer
	f := &doctorFlags{output: "text", sysfs: hostWithNICs(t)}
	if err := doctor(&out, f, func() (limiter, error) { return nil, &verbs.LoadError{Text: "no such file"} }); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "libibverbs: cannot be loaded: no such file\n") || !strings.Contains(text, "stripes: mlx5_0:1\n") {
		t.Errorf("got\n%s", text)
	}
	out.Reset()
	f = &doctorFlags{output: "text", sysfs: t.TempDir()}
	if err := doctor(&out, f, func() (limiter, error) { return fakeLimits{}, nil }); err != nil || !strings.Contains(out.String(), "devices: none\n") {
		t.Errorf("error %v, got\n%s", err, out.String())
	}
}

func TestDoctorRefuses(t *testing.T) {
	root := hostWithNICs(t)
	for _, tc := range []struct{ args, want string }{
		{"doctor -o xml", `--output is "xml", want text or json`},
		{"doctor --device mlx5_0:9", "--device mlx5_0: it has no port 9, it has 1"},
		{"doctor --device mlx5_7", "--device mlx5_7: there is none of this name; there are mlx5_0, mlx5_1, mlx5_2"},
		{"doctor --device mlx5_2", "--device mlx5_2: none of its ports can be used: its state is DOWN, want ACTIVE"},
		{"doctor --device mlx5_0:1/7", "--device mlx5_0:1: its GID table has no entry 7; it has 0, 3"},
		{"doctor --device :1", `--device is ":1"`},
		{"doctor --near numa:x", `--near is "numa:x", want numa:N`},
		{"doctor --near 0000:ff:00.0", `--near is "0000:ff:00.0": this host has no PCI device of this address`},
		{"doctor now", "unknown command"},
	} {
		if code, stdout, stderr := asMain(append(strings.Fields(tc.args), "--sysfs", root)...); code != 1 || stdout != "" || !strings.Contains(stderr, tc.want) {
			t.Errorf("%s: exit code %d, %q, want %q in %q", tc.args, code, stdout, tc.want, stderr)
		}
	}
}
