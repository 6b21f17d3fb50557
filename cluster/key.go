package cluster

import (
	"encoding/base64"
	"fmt"
	"os"
	"strings"
)

// ReadKey reads a gossip key from a file: base64 of 16, 24 or 32 bytes, for
// AES-128, -192 or -256, with white space around it at most. Whoever can read it
// can join; keep it from others (mode 0600).
func ReadKey(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("gossip key: %w", err)
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		// The cause would show part of the key.
		return nil, fmt.Errorf("gossip key %s: got text that is not base64", path)
	}
	if err := checkKey(key); err != nil {
		return nil, fmt.Errorf("gossip key %s: %w", path, err)
	}
	return key, nil
}

func checkKey(key []byte) error {
	switch len(key) {
	case 16, 24, 32:
		return nil
	}
	return fmt.Errorf("got %d bytes, want 16, 24 or 32", len(key))
}
