package messages

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
)

// Every body of the schema goes in and comes out, so that a body which is added
// to the schema and forgotten here is noticed.
func TestEveryRoomBodyWrapsAndUnwraps(t *testing.T) {
	bodies := (&Room{}).ProtoReflect().Descriptor().Oneofs().ByName("body").Fields()
	for i := range bodies.Len() {
		field := bodies.Get(i)
		r := &Room{}
		want := r.ProtoReflect().NewField(field).Message().Interface()
		got := NewRoom(RoomID{7, 2}, Engine{Instance: "p"}, Engine{Instance: "d"}, want)
		b, err := proto.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		back := &Room{}
		if err := proto.Unmarshal(b, back); err != nil {
			t.Fatal(err)
		}
		if reflect.TypeOf(back.Unwrap()) != reflect.TypeOf(want) {
			t.Errorf("%s: unwrapped %T, want %T", field.Name(), back.Unwrap(), want)
		}
		if back.ID() != (RoomID{7, 2}) || back.To.Engine().Instance != "d" || back.From.Engine().Instance != "p" {
			t.Errorf("%s: %v", field.Name(), back)
		}
	}
	if (&Room{}).Unwrap() != nil {
		t.Error("an empty body unwraps to something")
	}
}
