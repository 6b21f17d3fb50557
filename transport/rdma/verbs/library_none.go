//go:build !cgo || !linux

package verbs

// errNoCGO is what a build without cgo answers.
var errNoCGO = &LoadError{Text: "this binary was built without cgo"}

// Library is libibverbs; this build has none.
type Library struct{}

// Open answers that this build was made without cgo.
func Open() (*Library, error) { return nil, errNoCGO }

// Limits is never reached: there is no Library.
func (*Library) Limits(string, int) (Limits, error) { return Limits{}, errNoCGO }

func openFabric() (fabric, error) {
	_, err := Open()
	return nil, err
}
