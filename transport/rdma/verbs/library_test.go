//go:build cgo && linux

package verbs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// compile makes a library of the fake, or skips the test.
func compile(t *testing.T, flags ...string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("there is no gcc: ", err)
	}
	path := filepath.Join(t.TempDir(), "libfake.so")
	args := append([]string{"-Wall", "-Werror", "-shared", "-fPIC", "-o", path, "testdata/fake.c"}, flags...)
	if out, err := exec.Command(gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return path
}

// The layouts are the library's: the compiler says so, where its headers are.
func TestABI(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("there is no gcc: ", err)
	}
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skip("the headers of libibverbs are not installed: ", err)
	}
	if out, err := exec.Command(gcc, "-fsyntax-only", "-Wall", "testdata/abi.c").CombinedOutput(); err != nil {
		t.Errorf("abi.h differs from the headers: %v\n%s", err, out)
	}
}

func TestLimitsOfALibrary(t *testing.T) {
	if err := loadFrom(compile(t)); err != nil {
		t.Fatal(err)
	}
	lib := &Library{}
	want := Limits{
		Firmware: strings.Repeat("x", 64), MaxMR: 1 << 40, MaxMRs: 4096, MaxQP: 1000, MaxQPWR: 32767, MaxSGE: 2, MaxCQE: 65535,
		MTU: 1024, MaxMTU: 4096, MaxMsg: 1 << 30, GIDs: 24, DeviceCap: 1 << 31,
	}
	if got, err := lib.Limits("ionic_0", 1); err != nil || got != want {
		t.Errorf("got %+v, error %v; want %+v", got, err, want)
	}
	for _, c := range []struct {
		device string
		port   int
		call   string
		err    syscall.Errno
		hint   string
	}{
		{"ionic_0", 2, "ibv_query_port", syscall.EINVAL, ""},
		{"locked_0", 1, "ibv_open_device", syscall.EACCES, "may not open /dev/infiniband/uverbs*"},
		{"mlx5_7", 1, "ibv_get_device_list", syscall.ENODEV, "does not know the device"},
	} {
		_, err := lib.Limits(c.device, c.port)
		var failed *CallError
		if !errors.As(err, &failed) || failed.Call != c.call || failed.Err != c.err || failed.Device != c.device || !strings.Contains(err.Error(), c.hint) {
			t.Errorf("%s:%d: got error %v", c.device, c.port, err)
		}
	}
	for _, port := range []int{0, 256} {
		if _, err := lib.Limits("ionic_0", port); !errors.Is(err, errPort) {
			t.Errorf("port %d: got error %v", port, err)
		}
	}
}

// A library that is not there, is none, or lacks a function says so, and leaves one
// that was loaded before as it is.
func TestLibrariesThatCannotBeLoaded(t *testing.T) {
	if err := loadFrom(compile(t)); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text.so")
	if err := os.WriteFile(text, []byte("no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/nowhere/libibverbs.so.1":     "cannot open shared object file",
		text:                           "file too short",
		compile(t, "-DWITHOUT_LIST"):   "has no ibv_get_device_list",
		"libkvferry-is-not-there.so.1": "libkvferry-is-not-there.so.1: cannot open",
	} {
		var failed *LoadError
		if err := loadFrom(path); !errors.As(err, &failed) || !strings.Contains(failed.Text, want) {
			t.Errorf("%s: got error %v, want %q", path, err, want)
		}
	}
	if _, err := (&Library{}).Limits("ionic_0", 1); err != nil {
		t.Errorf("the library that was loaded before: %v", err)
	}
}
