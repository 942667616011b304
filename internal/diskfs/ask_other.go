//go:build !linux && !darwin && !freebsd

package diskfs

import "errors"

// ask knows nothing: every folder is let through.
func ask(string) (answer, error) { return answer{}, nil }

func mounts() ([]byte, error) { return nil, errors.ErrUnsupported }
