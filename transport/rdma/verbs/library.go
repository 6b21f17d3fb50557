package verbs

import (
	"errors"
	"fmt"
	"syscall"
)

// libraryName is what the loader of the system looks for.
const libraryName = "libibverbs.so.1"

// Limits is what a device and one of its ports can do at most.
type Limits struct {
	Firmware  string
	MaxMR     uint64 // bytes of one registration
	MaxMRs    int
	MaxQP     int
	MaxQPWR   int // work requests of a queue pair's send or receive queue
	MaxSGE    int // pieces of memory in one of them
	MaxCQE    int // entries of a completion queue
	MTU       int // bytes, that the port uses now
	MaxMTU    int // bytes
	MaxMsg    uint32
	GIDs      int // entries of the port's table
	DeviceCap uint32
}

// LoadError is why libibverbs is not there. Everything but verbs works without it.
type LoadError struct {
	Text string
	Hint string // what to do, where something can be done
}

func (e *LoadError) Error() string {
	text := "verbs: libibverbs cannot be loaded: " + e.Text
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	return text
}

// CallError is a call of the library that failed.
type CallError struct {
	Call   string
	Device string
	Err    syscall.Errno
}

func (e *CallError) Error() string {
	text := fmt.Sprintf("verbs: %s of %s: %v", e.Call, e.Device, e.Err)
	switch {
	// The library says "no such file" of a device that it may not open.
	case e.Call == "ibv_open_device" && (e.Err == syscall.EACCES || e.Err == syscall.EPERM || e.Err == syscall.ENOENT):
		text += ": this user may not open /dev/infiniband/uverbs*, or it is not there; in a container, give it the device"
	case e.Err == syscall.ENOSYS:
		text += ": the kernel has no ib_uverbs (modprobe ib_uverbs)"
	case (e.Call == "ibv_get_device_list" || e.Call == "ibv_open_device") && e.Err == syscall.ENODEV:
		text += ": the library does not know the device: is its provider (ibverbs-providers, rdma-core) installed?"
	}
	return text
}

func (e *CallError) Unwrap() error { return e.Err }

// mtuBytes is the MTU of a code of the library; 0: the code is none.
func mtuBytes(code int) int {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}

// mtuCode is the library's code of an MTU; 0: there is none.
func mtuCode(bytes int) int {
	for code := 1; code <= 5; code++ {
		if mtuBytes(code) == bytes {
			return code
		}
	}
	return 0
}

var errPort = errors.New("want 1 to 255")
