//go:build cgo && linux

package verbs

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"
	"syscall"
	"unsafe"
)

// Library is libibverbs, loaded.
type Library struct{}

var load = sync.OnceValue(func() error { return loadFrom(libraryName) })

func loadFrom(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var text [512]C.char
	if C.kv_load(name, &text[0], C.int(len(text))) != 0 {
		return &LoadError{Text: C.GoString(&text[0]), Hint: "Debian, Ubuntu: apt-get install ibverbs-providers; RHEL: dnf install libibverbs"}
	}
	return nil
}

// Open loads the library, once for the process. The error is a *LoadError.
func Open() (*Library, error) {
	if err := load(); err != nil {
		return nil, err
	}
	return &Library{}, nil
}

// Limits asks for the limits of a device and a port. Errors are *CallError.
func (*Library) Limits(device string, port int) (Limits, error) {
	if port < 1 || port > 255 {
		return Limits{}, fmt.Errorf("verbs: port of %s is %d, %w", device, port, errPort)
	}
	name := C.CString(device)
	defer C.free(unsafe.Pointer(name))
	var context *C.struct_kv_context
	var d C.struct_kv_device_attr
	var p C.struct_kv_port_attr
	var what *C.char
	e := C.kv_open(name, &context, &what)
	if e == 0 {
		e = C.kv_query(context, C.uint8_t(port), &d, &p, &what)
		C.kv_close(context) // all that was asked is known
	}
	if e != 0 {
		return Limits{}, &CallError{Call: C.GoString(what), Device: device, Err: syscall.Errno(e)}
	}
	return Limits{
		Firmware: C.GoStringN(&d.fw_ver[0], C.int(firmwareLen(&d))),
		MaxMR:    uint64(d.max_mr_size), MaxMRs: int(d.max_mr), MaxQP: int(d.max_qp), MaxQPWR: int(d.max_qp_wr),
		MaxSGE: int(d.max_sge), MaxCQE: int(d.max_cqe), DeviceCap: uint32(d.device_cap_flags),
		MTU: mtuBytes(int(p.active_mtu)), MaxMTU: mtuBytes(int(p.max_mtu)), MaxMsg: uint32(p.max_msg_sz), GIDs: int(p.gid_tbl_len),
	}, nil
}

// firmwareLen is the length of the text, which need not end with a zero.
func firmwareLen(d *C.struct_kv_device_attr) int {
	for i, c := range d.fw_ver {
		if c == 0 {
			return i
		}
	}
	return len(d.fw_ver)
}
