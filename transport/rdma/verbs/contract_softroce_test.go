//go:build cgo && linux

package verbs

import (
	"fmt"
	"os"
	"testing"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/rdmatest"
)

// TestSoftRoCEContract is the contract of every provider, between two devices in
// software.
func TestSoftRoCEContract(t *testing.T) {
	if os.Getenv("KVFERRY_SOFTROCE") == "" {
		t.Skip("this is not the guest of tests/softroce/run")
	}
	if err := loadFrom(libraryName); err != nil {
		t.Fatal(err)
	}
	rdmatest.Rounds = 4
	rdmatest.Run(t, func(t *testing.T) (a, b rdma.Provider) {
		return listenSoft(t, "rxea"), listenSoft(t, "rxeb")
	})
}

func listenSoft(t *testing.T, device string) *Provider {
	t.Helper()
	p, err := Listen(Config{Bind: "127.0.0.1:0", Devices: []Pick{{Device: device, GID: -1}}, fabric: libibverbs{}, Log: func(l Level, text string) {
		if l == Warn {
			fmt.Println("    " + text)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
