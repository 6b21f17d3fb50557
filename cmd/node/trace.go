package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// traced is one request of a trace or of a made workload.
type traced struct {
	arrival time.Duration // since the trace began
	tokens  uint64        // of the prompt; at least 1
	prefix  uint64        // of them, those that earlier requests had too; at most tokens
}

const (
	// traceBlock is the tokens that one hash of a Mooncake trace stands for.
	traceBlock = 512

	// traceLine bounds one line: a request of a million tokens has two thousand
	// hashes, some 16 KiB.
	traceLine = 4 << 20

	// traceTokens bounds a prompt: more than any model takes.
	traceTokens = 1 << 32

	azureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens"
	azureTime   = "2006-01-02 15:04:05.9999999"
)

// traceReader reads the requests of a trace one by one: the JSON lines of
// Mooncake or the CSV of Azure, whichever the first line says.
type traceReader struct {
	name  string
	lines *bufio.Reader
	line  int
	parse func(line []byte) (traced, error)
	begin time.Time       // of an Azure trace
	last  time.Duration   // arrival of the request before
	any   bool            // there was one
	seen  map[uint64]bool // hashes of earlier blocks
}

// newTraceReader looks at the first line. name is for errors.
func newTraceReader(name string, r io.Reader) (*traceReader, error) {
	t := &traceReader{name: name, lines: bufio.NewReaderSize(r, 64<<10), seen: make(map[uint64]bool)}
	first, err := t.lines.Peek(1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(first) == 1 && first[0] == '{' {
		t.parse = t.mooncake
		return t, nil
	}
	header, err := t.next()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if strings.TrimPrefix(string(header), "\ufeff") != azureHeader {
		return nil, fmt.Errorf("%s: line 1 begins with %.60q, want a JSON object of a Mooncake trace or the header %s of an Azure trace", name, header, azureHeader)
	}
	t.parse = t.azure
	return t, nil
}

// Next is the next request, or io.EOF after the last one. Another error names
// the line and the field.
func (t *traceReader) Next() (traced, error) {
	line, err := t.next()
	if err != nil {
		return traced{}, err
	}
	r, err := t.parse(line)
	if err == nil && t.any && r.arrival < t.last {
		err = fmt.Errorf("timestamp is %v after the first request, before the %v of the request before", r.arrival, t.last)
	}
	if err != nil {
		return traced{}, fmt.Errorf("%s: line %d: %w", t.name, t.line, err)
	}
	t.last, t.any = r.arrival, true
	return r, nil
}

// next is the next line that is not empty.
func (t *traceReader) next() ([]byte, error) {
	for {
		t.line++
		var line []byte
		for {
			part, err := t.lines.ReadSlice('\n')
			line = append(line, part...)
			if len(line) > traceLine {
				return nil, fmt.Errorf("%s: line %d is longer than %d bytes", t.name, t.line, traceLine)
			}
			if errors.Is(err, bufio.ErrBufferFull) {
				continue
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("%s: line %d: %w", t.name, t.line, err)
			}
			if err != nil && len(line) == 0 {
				return nil, io.EOF
			}
			break
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
	}
}

// mooncake parses {"timestamp": ms, "input_length": n, "hash_ids": [...]}.
func (t *traceReader) mooncake(line []byte) (traced, error) {
	var m struct {
		Timestamp *float64 `json:"timestamp"` // milliseconds
		Input     *uint64  `json:"input_length"`
		Hashes    []uint64 `json:"hash_ids"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return traced{}, fmt.Errorf("%s is a %s, want %s", wrong.Field, wrong.Value, wrong.Type)
		}
		return traced{}, err
	}
	switch {
	case m.Timestamp == nil:
		return traced{}, errors.New("timestamp is missing")
	case *m.Timestamp < 0 || *m.Timestamp > 1e12:
		return traced{}, fmt.Errorf("timestamp is %v, want 0 to 1e12 milliseconds", *m.Timestamp)
	case m.Input == nil:
		return traced{}, errors.New("input_length is missing")
	case *m.Input < 1 || *m.Input > traceTokens:
		return traced{}, fmt.Errorf("input_length is %d, want 1 to %d", *m.Input, uint64(traceTokens))
	}
	if want := (*m.Input + traceBlock - 1) / traceBlock; len(m.Hashes) > 0 && uint64(len(m.Hashes)) != want {
		return traced{}, fmt.Errorf("hash_ids has %d entries, want %d for an input_length of %d", len(m.Hashes), want, *m.Input)
	}
	known := 0
	for known < len(m.Hashes) && t.seen[m.Hashes[known]] {
		known++
	}
	for _, h := range m.Hashes[known:] {
		t.seen[h] = true
	}
	return traced{
		arrival: time.Duration(*m.Timestamp * float64(time.Millisecond)),
		tokens:  *m.Input, prefix: min(*m.Input, uint64(known)*traceBlock),
	}, nil
}

// azure parses TIMESTAMP,ContextTokens,GeneratedTokens.
func (t *traceReader) azure(line []byte) (traced, error) {
	fields := strings.Split(string(line), ",")
	if len(fields) != 3 {
		return traced{}, fmt.Errorf("got %d fields, want the 3 of %s", len(fields), azureHeader)
	}
	at, err := time.Parse(azureTime, fields[0])
	if err != nil {
		return traced{}, fmt.Errorf("TIMESTAMP is %q, want such as 2023-11-16 18:17:03.9799600", fields[0])
	}
	if t.begin.IsZero() {
		t.begin = at
	}
	tokens, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil || tokens < 1 || tokens > traceTokens {
		return traced{}, fmt.Errorf("ContextTokens is %q, want 1 to %d", fields[1], uint64(traceTokens))
	}
	if _, err := strconv.ParseUint(fields[2], 10, 64); err != nil {
		return traced{}, fmt.Errorf("GeneratedTokens is %q, want a whole number", fields[2])
	}
	return traced{arrival: at.Sub(t.begin), tokens: tokens}, nil
}
