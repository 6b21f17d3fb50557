package pairing

import (
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// differs is the conflict between two claims of one attachment, nil for none.
func differs(c, known *claim) *Conflict {
	field, got, want := difference("", c.wire.ProtoReflect(), known.wire.ProtoReflect())
	if field == "" && c.node != known.node {
		field, got, want = "node", c.node.String(), known.node.String()
	}
	if field == "" {
		return nil
	}
	return &Conflict{Engine: c.Engine, Field: field, Got: got, Want: want}
}

// difference is the first field, in the order of the schema, in which two
// messages of one type differ; "" for none.
func difference(at string, a, b protoreflect.Message) (field, got, want string) {
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := string(f.Name())
		if at != "" {
			name = at + "." + name
		}
		if f.IsList() {
			field, got, want = differenceOfLists(name, f, a.Get(f).List(), b.Get(f).List())
		} else {
			field, got, want = differenceOfValues(name, f, a.Get(f), b.Get(f))
		}
		if field != "" {
			return field, got, want
		}
	}
	return "", "", ""
}

func differenceOfLists(name string, f protoreflect.FieldDescriptor, a, b protoreflect.List) (field, got, want string) {
	if a.Len() != b.Len() {
		return name, fmt.Sprintf("%d entries", a.Len()), fmt.Sprintf("%d entries", b.Len())
	}
	for i := range a.Len() {
		field, got, want = differenceOfValues(fmt.Sprintf("%s[%d]", name, i), f, a.Get(i), b.Get(i))
		if field != "" {
			return field, got, want
		}
	}
	return "", "", ""
}

func differenceOfValues(name string, f protoreflect.FieldDescriptor, a, b protoreflect.Value) (field, got, want string) {
	switch {
	case f.Message() != nil:
		return difference(name, a.Message(), b.Message())
	case a.Equal(b):
		return "", "", ""
	case f.Kind() == protoreflect.BytesKind:
		return name, fmt.Sprintf("%x", a.Bytes()), fmt.Sprintf("%x", b.Bytes())
	case f.Kind() == protoreflect.StringKind:
		return name, fmt.Sprintf("%q", a.String()), fmt.Sprintf("%q", b.String())
	}
	return name, a.String(), b.String()
}
