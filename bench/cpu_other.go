//go:build !unix

package main

import "time"

// cpuTime is not known on this system.
func cpuTime() time.Duration { return 0 }
