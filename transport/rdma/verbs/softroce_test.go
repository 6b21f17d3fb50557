//go:build cgo && linux

package verbs

import (
	"os"
	"testing"
)

// TestSoftRoCE runs in the guest of tests/softroce: two devices in software, with the
// real library and the real kernel.
func TestSoftRoCE(t *testing.T) {
	if os.Getenv("KVFERRY_SOFTROCE") == "" {
		t.Skip("this is not the guest of tests/softroce/run")
	}
	devices, err := Devices("/sys")
	if err != nil {
		t.Fatal(err)
	}
	chosen, passed, err := Choose(devices, nil)
	if err != nil || len(chosen) != 2 || len(passed) != 0 {
		t.Fatalf("chose %v, passed over %v, error %v; want two ports", chosen, passed, err)
	}
	if err := loadFrom(libraryName); err != nil { // another test has loaded its own
		t.Fatal(err)
	}
	lib := &Library{}
	for i, c := range chosen {
		want := []string{"rxea:1", "rxeb:1"}[i]
		address := []string{"10.1.0.1", "10.1.0.2"}[i]
		if c.Name() != want || c.GID.Type != TypeRoCEv2 || c.GID.Family() != IPv4 || c.GID.String() != address || !c.GID.Up {
			t.Errorf("port %d is %s with %+v", i, c.Name(), c.GID)
		}
		l, err := lib.Limits(c.Device.Name, c.Port.Number)
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		// The MTU is the largest that fits the interface's 4200.
		if l.MTU != 4096 || l.MaxMTU != 4096 || l.MaxSGE < 4 || l.MaxQPWR < 1024 || l.MaxMR < 1<<40 || l.GIDs < 2 {
			t.Errorf("%s: got limits %+v", want, l)
		}
	}
}
