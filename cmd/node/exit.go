package main

import (
	"errors"
	"fmt"
)

// Exit codes that scripts rely on.
const (
	exitMalformed  = 1 // what was asked makes no sense, or it failed
	exitImpossible = 2 // well-formed deployments that cannot work, alone or together
)

// exitError ends the program with a code. With no err in it, what there is to
// say has been said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// malformed is an error that ends the program with code 1.
func malformed(format string, a ...any) error {
	return &exitError{exitMalformed, fmt.Errorf(format, a...)}
}

// exitOf is the exit code for an error of a command, and the text to print, ""
// for none. Errors that say no code of their own are code 1.
func exitOf(err error) (code int, text string) {
	if err == nil {
		return 0, ""
	}
	var e *exitError
	if errors.As(err, &e) {
		if e.err == nil {
			return e.code, ""
		}
		return e.code, err.Error()
	}
	return exitMalformed, err.Error()
}
