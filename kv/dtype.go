package kv

import "fmt"

// dtypes are the names of the element types, as deployment files write them.
var dtypes = [...]struct {
	dtype DType
	name  string
	bytes uint64
}{
	{BF16, "bf16", 2},
	{F16, "f16", 2},
	{F32, "f32", 4},
	{FP8E4M3, "fp8_e4m3", 1},
	{FP8E5M2, "fp8_e5m2", 1},
	{INT8, "int8", 1},
	{UINT8, "uint8", 1},
}

func (d DType) String() string {
	for _, t := range dtypes {
		if t.dtype == d {
			return t.name
		}
	}
	return fmt.Sprintf("dtype %d", uint8(d))
}

// Bytes is the size of one element, 0 for no element type.
func (d DType) Bytes() uint64 {
	for _, t := range dtypes {
		if t.dtype == d {
			return t.bytes
		}
	}
	return 0
}

// ParseDType reads an element type by its name.
func ParseDType(s string) (DType, error) {
	for _, t := range dtypes {
		if t.name == s {
			return t.dtype, nil
		}
	}
	return 0, fmt.Errorf("dtype is %q, want one of %s", s, dtypeNames())
}

func dtypeNames() string {
	s := ""
	for i, t := range dtypes {
		if i > 0 {
			s += " "
		}
		s += t.name
	}
	return s
}

func (k Kind) String() string {
	switch k {
	case Paged:
		return "paged"
	case Slot:
		return "slot"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// ParseKind reads a kind by its name.
func ParseKind(s string) (Kind, error) {
	for _, k := range []Kind{Paged, Slot} {
		if s == k.String() {
			return k, nil
		}
	}
	return 0, fmt.Errorf("kind is %q, want paged or slot", s)
}
